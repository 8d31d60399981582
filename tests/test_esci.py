import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.data.public import esci
from restd.data.public.esci import ITEMS, ROWS, esci_source, paper_examples, read_examples, read_paths
from restd.data.text import plain_text
from restd.errors import ConfigError, DataError

THREE = ["Home", "Kitchen", "Kettles"]

# Kettle A, B and mug C are in the training split, B only as irrelevant; the test query "pot" finds A and C.
ROWS_ = [
    ("kettle", "A", "E", "train"),
    ("kettle", "B", "I", "train"),
    ("mug", "C", "S", "train"),
    ("pot", "A", "E", "test"),
    ("pot", "C", "C", "test"),
]
PATHS = {"A": THREE, "B": THREE, "C": THREE}


class Files:
    """Writes the three files of the published schema and reads them as a source."""

    def __init__(self, folder):
        self.folder = folder
        self.examples, self.products = folder / "examples.parquet", folder / "products.parquet"
        self.categories = folder / "esci.json"

    def write(self, rows=ROWS_, paths=PATHS, *, locale="us", products=None):
        """Rows are (query, product, label, split[, changes of any column])."""
        numbers = {query: number for number, query in enumerate(dict.fromkeys(row[0] for row in rows), start=70)}
        records = [
            {
                "example_id": position,
                "query": query,
                "query_id": numbers[query],
                "product_id": product,
                "product_locale": locale,
                "esci_label": label,
                "small_version": 1,
                "large_version": 1,
                "split": split,
                **(rest[0] if rest else {}),
            }
            for position, (query, product, label, split, *rest) in enumerate(rows)
        ]
        pq.write_table(pa.Table.from_pylist(records), self.examples)
        if products is None:
            products = [{"product_id": name} for name in sorted({row[1] for row in rows})]
        blank = dict.fromkeys(["product_title", *(f"product_{name}" for name in ("description", "brand", "color"))])
        blank |= {"product_bullet_point": None, "product_locale": locale}
        schema = pa.schema([(name, pa.string()) for name in ("product_id", *blank)])
        pq.write_table(pa.Table.from_pylist([blank | product for product in products], schema), self.products)
        self.categories.write_text(
            "".join(json.dumps({"asin": asin, "category": path}) + "\n" for asin, path in paths.items())
        )
        return self

    def source(self, **options):
        options = {"locale": "us", "categories": self.categories} | options
        return esci_source(self.examples, self.products, **options)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def items_of(source):
    return pa.Table.from_batches(source.items(), schema=ITEMS)


def judgments_of(source, *splits):
    table = pa.Table.from_batches(source.judgments(), schema=ROWS)
    rows = [(row["query"], row["item"], row["grade"], row["split"]) for row in table.to_pylist()]
    return [row for row in rows if not splits or row[3] in splits]


BASE = [
    ("kettle", "A", 3.0, "train"),
    ("kettle", "B", 0.0, "train"),
    ("mug", "C", 2.0, "train"),
    ("pot", "A", 3.0, "test"),
    ("pot", "C", 1.0, "test"),
]


def test_the_paper_keeps_train_products_of_any_label_and_grades_them(files):
    source = files.write().source()
    assert judgments_of(source) == BASE
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C"]
    table = pa.Table.from_batches(source.judgments())
    assert table["query_id"].to_pylist() == ["70", "70", "71", "72", "72"]
    assert table["seen"].to_pylist() == [True] * 5


# One added row each, and the files it would need to survive every other filter.
REMOVED = {
    "large version, train": (("kettle", "D", "E", "train", {"small_version": 0}), THREE),
    "large version, test": (("pan", "A", "E", "test", {"small_version": 0}), THREE),
    "other locale": (("kettle", "D", "E", "train", {"product_locale": "es"}), THREE),
    "no path": (("kettle", "D", "E", "train"), None),
    "empty path": (("kettle", "D", "E", "train"), []),
    "path of two characters": (("kettle", "D", "E", "train"), ["ab"]),
    "test row that is not positive": (("pot", "C", "I", "test"), THREE),
    "test product negative in train": (("pot", "B", "E", "test"), THREE),
    "test product not in train": (("pot", "D", "E", "test"), THREE),
}


@pytest.mark.parametrize("name", REMOVED)
def test_each_filter_of_the_paper_removes_its_own_row(files, name):
    row, path = REMOVED[name]
    base = [other for other in ROWS_ if other[:2] != row[:2]]
    paths = PATHS | ({} if path is None else {"D": path})
    products = [{"product_id": product} for product in "ABCD"]
    source = files.write([*base, row], paths, products=products).source()
    assert judgments_of(source) == [other for other in BASE if other[:2] != row[:2]]
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C"]


def test_the_removed_rows_are_kept_once_their_fault_is_mended(files):
    """The other half of the test above: each row fails by one filter alone."""
    products = [{"product_id": product} for product in "ABCD"]
    paths = PATHS | {"D": THREE}
    for row in (("kettle", "D", "E", "train"), ("pan", "A", "E", "test")):
        source = files.write([*ROWS_, row], paths, products=products).source()
        assert row[:2] in [judgment[:2] for judgment in judgments_of(source)]
    in_train = [*ROWS_, ("mug", "D", "C", "train"), ("pot", "D", "E", "test")]
    assert ("pot", "D", 3.0, "test") in judgments_of(files.write(in_train, paths).source())
    positive = [*ROWS_, ("mug", "B", "C", "train"), ("pot", "B", "E", "test")]
    assert ("pot", "B", 3.0, "test") in judgments_of(files.write(positive, paths).source())


@pytest.mark.parametrize("path", [["abc"], ["a", "b"]])
def test_a_path_of_three_characters_with_its_tab_is_enough_for_an_item(files, path):
    source = files.write([*ROWS_, ("kettle", "D", "E", "train")], PATHS | {"D": path}).source()
    assert items_of(source)["category"].to_pylist()[-1] == path


@pytest.mark.parametrize(
    ("first", "second", "passes"), [(["Home", "Bath"], THREE, False), (THREE, ["Home", "Bath"], True)]
)
def test_the_first_positive_of_a_test_query_needs_three_levels(files, first, second, passes):
    rows = [
        ("mug", "D", "E", "train"),
        ("mug", "F", "E", "train"),
        ("pan", "D", "C", "test"),
        ("pan", "F", "E", "test"),
    ]
    source = files.write([*ROWS_, *rows], PATHS | {"D": first, "F": second}).source()
    assert [row[1] for row in judgments_of(source, "test") if row[0] == "pan"] == (["D", "F"] if passes else [])


def test_an_irrelevant_row_before_the_first_positive_does_not_count(files):
    rows = [("mug", "D", "E", "train"), ("pan", "D", "I", "test"), ("pan", "A", "E", "test")]
    source = files.write([*ROWS_, *rows], PATHS | {"D": ["Home", "Bath"]}, locale="es").source(locale="es")
    assert [row[1] for row in judgments_of(source, "test") if row[0] == "pan"] == ["D", "A"]


@pytest.mark.parametrize("locale", ["es", "jp", "ES"])
def test_other_locales_keep_test_rows_of_any_train_product(files, locale):
    rows = [
        *ROWS_,
        ("pot", "B", "I", "test"),  # negative row, product negative in train
        ("pan", "B", "E", "test"),  # product negative in train
        ("pan", "D", "E", "test"),  # product not in train
        ("lid", "A", "I", "test"),  # no positive
    ]
    source = files.write(rows, PATHS | {"D": THREE}, locale=locale.lower()).source(locale=locale)
    assert judgments_of(source, "test") == [*BASE[3:], ("pot", "B", 0.0, "test"), ("pan", "B", 3.0, "test")]


def test_the_paper_counts_a_query_product_label_once(files):
    rows = [*ROWS_, ("kettle", "A", "E", "train"), ("kettle", "A", "S", "train"), ("pot", "A", "E", "test")]
    files.write(rows)
    examples = read_examples(files.examples, locale="us", small_version=True)
    paths = read_paths(files.categories, examples.items)
    rows = paper_examples(examples, paths, locale="us", catalogue="train")
    assert rows.grade.tolist() == [3.0, 0.0, 2.0, 3.0, 1.0, 2.0]
    assert rows.train.tolist() == [True, True, True, False, False, True]


def test_a_pair_with_two_labels_keeps_the_higher_grade(files):
    rows = [("kettle", "A", "C", "train"), *ROWS_, ("kettle", "B", "I", "train")]
    assert judgments_of(files.write(rows).source()) == BASE


def test_queries_are_grouped_by_text_under_their_first_id(files):
    rows = [*ROWS_, ("pot", "C", "E", "test", {"query_id": 999})]
    table = pa.Table.from_batches(files.write(rows).source().judgments())
    assert table["query_id"].to_pylist()[3:] == ["72", "72"]
    assert table["grade"].to_pylist()[3:] == [3.0, 3.0]


def test_catalogue_all_adds_products_only_test_names_and_marks_them_unseen(files):
    files.write([*ROWS_, ("pot", "D", "E", "test"), ("pot", "B", "I", "test")], PATHS | {"D": THREE})
    source = files.source(catalogue="all")
    assert judgments_of(source) == [*BASE, ("pot", "D", 3.0, "test")]
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C", "D"]
    assert pa.Table.from_batches(source.judgments())["seen"].to_pylist() == [True] * 5 + [False]


def test_profile_all_filters_by_locale_version_and_known_products_only(files):
    rows = [
        *ROWS_,
        ("kettle", "D", "E", "train"),  # no path
        ("pan", "B", "I", "test"),  # no positive, negative in train
        ("pan", "G", "E", "test"),  # not in train
        ("kettle", "H", "E", "train"),  # not among the products
        ("kettle", "A", "E", "train", {"small_version": 0, "query": "jug", "query_id": 999}),
        ("kettle", "A", "E", "train", {"product_locale": "jp"}),
    ]
    products = [{"product_id": name} for name in "ABCDG"]
    files.write(rows, products=products)
    expected = [*BASE, ("kettle", "D", 3.0, "train"), ("pan", "B", 0.0, "test")]
    source = files.source(profile="all", categories=None)
    assert judgments_of(source) == expected
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C", "D"]
    assert items_of(source)["category"].to_pylist() == [[]] * 4
    assert source.notes[-2:] == (
        "1 rows were dropped because their products are not in products.parquet.",
        "1 test rows were dropped: products not in the training split (catalogue='train').",
    )
    wide = files.source(profile="all", catalogue="all")
    assert judgments_of(wide) == [*expected, ("pan", "G", 3.0, "test")]
    assert items_of(wide)["category"].to_pylist() == [THREE] * 3 + [[], []]
    assert ("jug", "A", 3.0, "train") in judgments_of(files.source(profile="all", small_version=False))


def test_valid_is_a_tenth_of_the_training_queries_with_all_their_rows(files):
    rows = [(f"query {number}", product, "E", "train") for number in range(50) for product in "AB"]
    for profile in ("paper", "all"):
        split = judgments_of(files.write([*rows, *ROWS_[3:]]).source(profile=profile))
        valid = {row[0] for row in split if row[3] == "valid"}
        drawn = np.random.default_rng(42).permutation(50)[:5]
        assert valid == {sorted({row[0] for row in rows})[position] for position in drawn}
        assert sum(row[3] == "valid" for row in split) == 10
        assert valid.isdisjoint(row[0] for row in split if row[3] != "valid")
        again = judgments_of(files.write([*rows[::-1], *ROWS_[3:]]).source(profile=profile))
        assert {row[0] for row in again if row[3] == "valid"} == valid


def test_counts_other_than_the_papers_are_told_or_with_strict_refused(files, monkeypatch):
    files.write()
    notes = files.source().notes
    assert notes[0].startswith("Found 3 products for us, but the paper has 288,372")
    assert notes[1].startswith("Found 1 test queries for us, but the paper has 6,014")
    assert notes[2].startswith("3 products; training: 2 queries with 3 judgments, 2 of them positive; test: 1 qu")
    with pytest.raises(DataError, match="for us, 288,372 products, got 3 and 6,014 test queries, got 1"):
        files.source(strict=True)
    monkeypatch.setitem(esci.PUBLISHED, "us", {"products": 3, "test queries": 1})
    assert not any(note.startswith("Found") for note in files.source(strict=True).notes)


def test_a_query_in_both_splits_is_told(files):
    source = files.write([*ROWS_, ("kettle", "A", "S", "test")]).source()
    assert "1 test queries are also training queries; they stay in both splits." in source.notes
    assert judgments_of(source) == [*BASE, ("kettle", "A", 2.0, "test")]


def test_products_are_streamed_once_each_without_markup(files, monkeypatch):
    products = [
        {"product_id": "B", "product_title": "Bee", "product_locale": "es"},
        {"product_id": "B", "product_title": "<b>Bowl</b> &amp; lid", "product_bullet_point": "one\n\ntwo"},
        {"product_id": "Z", "product_title": "Not judgments_of"},
        {"product_id": "C", "product_brand": "Ceram", "product_color": "Red", "product_description": "<p>Hot</p>cup"},
        {"product_id": "B", "product_title": "Again"},
        {"product_id": "A"},
    ]
    files.write(products=products)
    blank = {"title": "", "category": THREE, "brand": "", "color": "", "bullet": "", "description": ""}
    expected = [
        {"id": "B", **blank, "title": "Bowl & lid", "bullet": "one two"},
        {"id": "C", **blank, "brand": "Ceram", "color": "Red", "description": "Hot cup"},
        {"id": "A", **blank},
    ]
    for size in (2, 100):
        monkeypatch.setattr(esci, "_BATCH_ROWS", size)
        source = files.source()
        assert items_of(source).to_pylist() == expected
        assert items_of(source).to_pylist() == expected
        assert judgments_of(source) == BASE


def test_plain_text():
    assert plain_text(None) == ""
    assert plain_text("a <br>b</BR> c") == "a b c"
    assert plain_text("&lt;ul&gt;&lt;li&gt;x&lt;/li&gt;") == "x"
    assert plain_text("<style>p {}</style>x<script src='a'>1<2</script>y<!-- no\n-->z") == "x y z"
    assert plain_text("2 < 3 and 4 > 1") == "2 < 3 and 4 > 1"


def test_the_last_path_that_is_not_empty_wins_in_plain_or_gzip_files(tmp_path):
    lines = [
        {"asin": "A", "category": ["old"], "locale": "us"},
        {"asin": "A", "category": ["new", "er"], "locale": "jp"},
        {"asin": "A", "category": []},
        {"asin": "A", "category": None},
        {"asin": "A"},
        {"asin": "Q", "category": ["not wanted"]},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    (tmp_path / "c.json").write_text(text)
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.json.zst").write_bytes(pa.Codec("zstd").compress(text.encode(), asbytes=True))
    for path in (tmp_path / "c.json", tmp_path / "c.json.gz", tmp_path / "c.json.zst"):
        assert read_paths(path, pa.array(["B", "A"])) == [(), ("new", "er")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object"),
        ("[]", "line 2: not a JSON object"),
        ('{"category": []}', "line 2: 'asin' is None, but an id is required; the keys are: category"),
        (
            '{"asin": "A", "category": "Home > Bath"}',
            "expected category to be a list of strings, got 'Home > Bath'",
        ),
        ('{"asin": "A", "category": ["Home", 3]}', "line 2: expected category to be a list of strings"),
    ],
)
def test_bad_category_lines_are_named(tmp_path, line, message):
    (tmp_path / "c.json").write_text('{"asin": "A"}\n' + line)
    with pytest.raises(DataError, match=message):
        read_paths(tmp_path / "c.json", pa.array(["A"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"locale": "fr"}, r"Unknown locale 'fr'\. Choose one of us, es, jp"),
        ({"profile": "mine"}, r"Unknown profile 'mine'\. Choose one of paper, all"),
        ({"catalogue": "test"}, r"Unknown catalogue 'test'\. Choose one of train, all"),
        ({"small_version": False}, "profile='paper' needs the small version"),
        ({"strict": True, "catalogue": "all"}, "strict needs profile='paper' and catalogue='train'"),
        ({"strict": True, "profile": "all"}, "strict needs profile='paper' and catalogue='train'"),
    ],
)
def test_impossible_settings_are_refused(files, options, message):
    with pytest.raises(ConfigError, match=message):
        files.write().source(**options)


def test_the_paper_needs_categories(files):
    with pytest.raises(DataError, match=r"no categories file was passed\. .* profile='all'"):
        files.write().source(categories=None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("pot", "A", "exact", "test"), "column esci_label: expected one of E, S, C, I, got 'exact'"),
        (("pot", "A", "E", "dev"), "column split: expected one of train, test, got 'dev'"),
        (("pot", None, "E", "test"), "empty cells in column product_id"),
        (("pan", "A", "E", "test", {"query_id": 70}), "has one query_id for several query texts"),
    ],
)
def test_bad_examples_are_data_errors(files, row, message):
    files.write([*ROWS_, row], products=[{"product_id": "A"}])
    with pytest.raises(DataError, match=message):
        files.source()


def test_unusable_files_are_data_errors(files):
    files.write()
    with pytest.raises(DataError, match=r"has no usable rows of locale 'jp'\. Choose one of its locales: us"):
        files.source(locale="jp")
    table = pq.read_table(files.products)
    pq.write_table(table.drop_columns(["product_locale"]), files.products)
    with pytest.raises(DataError, match=r"products\.parquet has no column product_locale \(its columns: product_id, "):
        files.source()
    pq.write_table(table.drop_columns(["product_brand"]), files.products)
    with pytest.raises(DataError, match=r"products\.parquet has no column product_brand"):
        items_of(files.source())
    files.products.write_text("not parquet")
    with pytest.raises(DataError, match=r"Cannot read .*products\.parquet as parquet"):
        files.source()
    files.examples.unlink()
    with pytest.raises(DataError, match=r"Cannot read .*examples\.parquet as parquet"):
        files.source()


def test_settings_are_enough_to_make_the_data_again(files):
    settings = json.loads(json.dumps(files.write().source().settings))
    paths = {name: str(getattr(files, name)) for name in ("examples", "products", "categories")}
    options = {"locale": "us", "small_version": True, "profile": "paper", "catalogue": "train", "valid_seed": 42}
    assert settings == paths | options
