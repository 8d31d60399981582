import bz2
import gzip
import json

import pyarrow as pa
import pytest

from restd.data.lines import json_lines, numbered_lines, required_id
from restd.errors import DataError


def test_only_a_line_feed_ends_a_line(tmp_path):
    (tmp_path / "t").write_text("a\u2028b\x0bc\nd", newline="")
    assert list(numbered_lines(tmp_path / "t")) == [(1, "a\u2028b\x0bc"), (2, "d")]


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("t.jsonl", bytes),
        ("t.jsonl.gz", gzip.compress),
        ("t.jsonl.bz2", bz2.compress),
        ("t.jsonl.zst", lambda content: pa.Codec("zstd").compress(content, asbytes=True)),
    ],
)
def test_records_are_read_from_plain_and_compressed_files(tmp_path, name, compress):
    (tmp_path / name).write_bytes(compress(b'\xef\xbb\xbf{"a": 1}\r\n \n{"a": "\xc3\xa9"}'))
    assert list(json_lines(tmp_path / name)) == [(1, {"a": 1}), (3, {"a": "é"})]


def test_gzip_members_one_after_another_are_one_file(tmp_path):
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert [line for _, line in numbered_lines(tmp_path / "t.gz")] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{", "Expecting property"), ("[1]", "type list"), ("7", "type int"), ("{'a': 1}", "Expecting property")],
)
def test_what_is_not_an_object_is_refused_with_its_line(tmp_path, line, reason):
    (tmp_path / "t.jsonl").write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(
        DataError, match=rf"t\.jsonl, line 2: not a JSON object \({reason}.*\); write one object per line"
    ):
        list(json_lines(tmp_path / "t.jsonl"))


def test_deep_nesting_is_a_data_error(tmp_path):
    (tmp_path / "t.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match="line 1: not a JSON object"):
        list(json_lines(tmp_path / "t.jsonl"))


def test_lone_surrogates_stay_or_become_question_marks(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"a": "\ud800x", "\ud801": ["\udfff", "\U0001f600"]}))
    assert next(json_lines(path))[1]["a"] == "\ud800x"
    assert next(json_lines(path, replace_surrogates=True))[1] == {"a": "?x", "?": ["?", "\U0001f600"]}


def test_an_id_is_text_or_a_whole_number(tmp_path):
    assert required_id({"asin": " B1 "}, "asin", path=tmp_path, number=1) == "B1"
    assert required_id({"asin": 7}, "asin", path=tmp_path, number=1) == "7"
    for value in (None, "", " ", True, 1.5, ["B1"]):
        with pytest.raises(DataError, match=r"line 3: 'asin' is .*, but an id is required; the keys are: asin, x"):
            required_id({"asin": value, "x": 1}, "asin", path=tmp_path, number=3)
