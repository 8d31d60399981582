import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.data import esci
from restd.data.esci import ITEMS, ROWS, esci_source, paper_examples, plain_text, read_examples, read_paths
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
                "example_id": place,
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
            for place, (query, product, label, split, *rest) in enumerate(rows)
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


def judged(source, *splits):
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
    assert judged(source) == BASE
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
    assert judged(source) == [other for other in BASE if other[:2] != row[:2]]
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C"]


def test_the_removed_rows_are_kept_once_their_fault_is_mended(files):
    """The other half of the test above: each row fails by one filter alone."""
    products = [{"product_id": product} for product in "ABCD"]
    paths = PATHS | {"D": THREE}
    for row in (("kettle", "D", "E", "train"), ("pan", "A", "E", "test")):
        source = files.write([*ROWS_, row], paths, products=products).source()
        assert row[:2] in [kept[:2] for kept in judged(source)]
    in_train = [*ROWS_, ("mug", "D", "C", "train"), ("pot", "D", "E", "test")]
    assert ("pot", "D", 3.0, "test") in judged(files.write(in_train, paths).source())
    positive = [*ROWS_, ("mug", "B", "C", "train"), ("pot", "B", "E", "test")]
    assert ("pot", "B", 3.0, "test") in judged(files.write(positive, paths).source())


@pytest.mark.parametrize("path", [["abc"], ["a", "b"]])
def test_a_path_of_three_characters_with_its_tab_is_enough_for_an_item(files, path):
    source = files.write([*ROWS_, ("kettle", "D", "E", "train")], PATHS | {"D": path}).source()
    assert items_of(source)["category"].to_pylist()[-1] == path


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(["Home", "Bath"], THREE, False), (THREE, ["Home", "Bath"], True)]
)
def test_the_first_positive_of_a_test_query_needs_three_levels(files, first, second, kept):
    rows = [
        ("mug", "D", "E", "train"),
        ("mug", "F", "E", "train"),
        ("pan", "D", "C", "test"),
        ("pan", "F", "E", "test"),
    ]
    source = files.write([*ROWS_, *rows], PATHS | {"D": first, "F": second}).source()
    assert [row[1] for row in judged(source, "test") if row[0] == "pan"] == (["D", "F"] if kept else [])


def test_an_irrelevant_row_before_the_first_positive_does_not_count(files):
    rows = [("mug", "D", "E", "train"), ("pan", "D", "I", "test"), ("pan", "A", "E", "test")]
    source = files.write([*ROWS_, *rows], PATHS | {"D": ["Home", "Bath"]}, locale="es").source(locale="es")
    assert [row[1] for row in judged(source, "test") if row[0] == "pan"] == ["D", "A"]


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
    assert judged(source, "test") == [*BASE[3:], ("pot", "B", 0.0, "test"), ("pan", "B", 3.0, "test")]


def test_the_paper_counts_a_query_product_label_once(files):
    rows = [*ROWS_, ("kettle", "A", "E", "train"), ("kettle", "A", "S", "train"), ("pot", "A", "E", "test")]
    files.write(rows)
    examples = read_examples(files.examples, locale="us", small_version=True)
    paths = read_paths(files.categories, examples.items)
    kept = paper_examples(examples, paths, locale="us", catalogue="train")
    assert kept.grade.tolist() == [3.0, 0.0, 2.0, 3.0, 1.0, 2.0]
    assert kept.train.tolist() == [True, True, True, False, False, True]


def test_a_pair_with_two_labels_keeps_the_higher_grade(files):
    rows = [("kettle", "A", "C", "train"), *ROWS_, ("kettle", "B", "I", "train")]
    assert judged(files.write(rows).source()) == BASE


def test_queries_are_grouped_by_text_under_their_first_id(files):
    rows = [*ROWS_, ("pot", "C", "E", "test", {"query_id": 999})]
    table = pa.Table.from_batches(files.write(rows).source().judgments())
    assert table["query_id"].to_pylist()[3:] == ["72", "72"]
    assert table["grade"].to_pylist()[3:] == [3.0, 3.0]


def test_catalogue_all_adds_products_only_test_names_and_marks_them_unseen(files):
    files.write([*ROWS_, ("pot", "D", "E", "test"), ("pot", "B", "I", "test")], PATHS | {"D": THREE})
    source = files.source(catalogue="all")
    assert judged(source) == [*BASE, ("pot", "D", 3.0, "test")]
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
    kept = [*BASE, ("kettle", "D", 3.0, "train"), ("pan", "B", 0.0, "test")]
    source = files.source(profile="all", categories=None)
    assert judged(source) == kept
    assert items_of(source)["id"].to_pylist() == ["A", "B", "C", "D"]
    assert items_of(source)["category"].to_pylist() == [[]] * 4
    assert source.notes[-2:] == (
        "1 rows were dropped for products that products.parquet lacks.",
        "1 test rows were dropped for products outside the training split (catalogue='train').",
    )
    wide = files.source(profile="all", catalogue="all")
    assert judged(wide) == [*kept, ("pan", "G", 3.0, "test")]
    assert items_of(wide)["category"].to_pylist() == [THREE] * 3 + [[], []]
    assert ("jug", "A", 3.0, "train") in judged(files.source(profile="all", small_version=False))


def test_valid_is_a_tenth_of_the_training_queries_with_all_their_rows(files):
    rows = [(f"query {number}", product, "E", "train") for number in range(50) for product in "AB"]
    for profile in ("paper", "all"):
        split = judged(files.write([*rows, *ROWS_[3:]]).source(profile=profile))
        valid = {row[0] for row in split if row[3] == "valid"}
        drawn = np.random.default_rng(42).permutation(50)[:5]
        assert valid == {sorted({row[0] for row in rows})[place] for place in drawn}
        assert sum(row[3] == "valid" for row in split) == 10
        assert valid.isdisjoint(row[0] for row in split if row[3] != "valid")
        again = judged(files.write([*rows[::-1], *ROWS_[3:]]).source(profile=profile))
        assert {row[0] for row in again if row[3] == "valid"} == valid


def test_counts_other_than_the_papers_are_told_or_with_strict_refused(files, monkeypatch):
    files.write()
    notes = files.source().notes
    assert notes[0].startswith("Found 3 products where the paper's preparation of us has 288,372")
    assert notes[1].startswith("Found 1 test queries where the paper's preparation of us has 6,014")
    assert notes[2].startswith("3 products; for training 2 queries with 3 judgments, 2 of them positive; for test 1 qu")
    with pytest.raises(DataError, match="leave 3 products where 288,372 were wanted and 1 test queries where 6,014"):
        files.source(strict=True)
    monkeypatch.setitem(esci.PUBLISHED, "us", {"products": 3, "test queries": 1})
    assert not any(note.startswith("Found") for note in files.source(strict=True).notes)


def test_a_query_in_both_splits_is_told(files):
    source = files.write([*ROWS_, ("kettle", "A", "S", "test")]).source()
    assert "1 test queries are also training queries; they were kept in both." in source.notes
    assert judged(source) == [*BASE, ("kettle", "A", 2.0, "test")]


def test_products_are_streamed_once_each_without_markup(files, monkeypatch):
    products = [
        {"product_id": "B", "product_title": "Bee", "product_locale": "es"},
        {"product_id": "B", "product_title": "<b>Bowl</b> &amp; lid", "product_bullet_point": "one\n\ntwo"},
        {"product_id": "Z", "product_title": "Not judged"},
        {"product_id": "C", "product_brand": "Ceram", "product_color": "Red", "product_description": "<p>Hot</p>cup"},
        {"product_id": "B", "product_title": "Again"},
        {"product_id": "A"},
    ]
    files.write(products=products)
    blank = {"title": "", "category": THREE, "brand": "", "color": "", "bullet": "", "description": ""}
    wanted = [
        {"id": "B", **blank, "title": "Bowl & lid", "bullet": "one two"},
        {"id": "C", **blank, "brand": "Ceram", "color": "Red", "description": "Hot cup"},
        {"id": "A", **blank},
    ]
    for size in (2, 100):
        monkeypatch.setattr(esci, "_BATCH_ROWS", size)
        source = files.source()
        assert items_of(source).to_pylist() == wanted
        assert items_of(source).to_pylist() == wanted
        assert judged(source) == BASE


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
    for path in (tmp_path / "c.json", tmp_path / "c.json.gz"):
        assert read_paths(path, pa.array(["B", "A"])) == [(), ("new", "er")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object with an 'asin'"),
        ("[]", "line 2: not a JSON object"),
        ('{"category": []}', "line 2: not a JSON object with an 'asin'"),
        ('{"asin": "A", "category": "Home > Bath"}', "line 2: category 'Home > Bath' is not a list of texts"),
        ('{"asin": "A", "category": ["Home", 3]}', "line 2: category .* is not a list of texts"),
    ],
)
def test_bad_category_lines_are_named(tmp_path, line, message):
    (tmp_path / "c.json").write_text('{"asin": "A"}\n' + line)
    with pytest.raises(DataError, match=message):
        read_paths(tmp_path / "c.json", pa.array(["A"]))


def test_zstd_categories_are_to_be_unpacked_first(files):
    with pytest.raises(DataError, match=r"unpack it first with `zstd -d esci\.json\.zst`"):
        files.write().source(categories=files.folder / "esci.json.zst")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"locale": "fr"}, "locale 'fr' is unknown; choose one of us, es, jp"),
        ({"profile": "mine"}, "profile 'mine' is unknown; choose one of paper, all"),
        ({"catalogue": "test"}, "catalogue 'test' is unknown; choose one of train, all"),
        ({"small_version": False}, "profile='paper' is defined on the small version"),
        ({"strict": True, "catalogue": "all"}, "strict compares with counts published for"),
        ({"strict": True, "profile": "all"}, "strict compares with counts published for"),
    ],
)
def test_impossible_settings_are_refused(files, options, message):
    with pytest.raises(ConfigError, match=message):
        files.write().source(**options)


def test_the_paper_needs_categories(files):
    with pytest.raises(DataError, match=r"no categories file was given; .* profile='all'"):
        files.write().source(categories=None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("pot", "A", "exact", "test"), "column esci_label: 'exact' is unknown; it should be E, S, C, I"),
        (("pot", "A", "E", "dev"), "column split: 'dev' is unknown; it should be train, test"),
        (("pot", None, "E", "test"), "empty cells in column product_id"),
        (("pan", "A", "E", "test", {"query_id": 70}), "gives one query_id to several query texts"),
    ],
)
def test_bad_examples_are_data_errors(files, row, message):
    files.write([*ROWS_, row], products=[{"product_id": "A"}])
    with pytest.raises(DataError, match=message):
        files.source()


def test_unusable_files_are_data_errors(files):
    files.write()
    with pytest.raises(DataError, match=r"has no rows to use of locale 'jp' \(it has: us\)"):
        files.source(locale="jp")
    table = pq.read_table(files.products)
    pq.write_table(table.drop_columns(["product_locale"]), files.products)
    with pytest.raises(DataError, match=r"products\.parquet has no column product_locale \(it has: product_id, "):
        files.source()
    pq.write_table(table.drop_columns(["product_brand"]), files.products)
    with pytest.raises(DataError, match=r"products\.parquet has no column product_brand"):
        items_of(files.source())
    files.products.write_text("not parquet")
    with pytest.raises(DataError, match=r"products\.parquet cannot be read as parquet"):
        files.source()
    files.examples.unlink()
    with pytest.raises(DataError, match=r"examples\.parquet cannot be read as parquet"):
        files.source()


def test_settings_are_enough_to_make_the_data_again(files):
    settings = json.loads(json.dumps(files.write().source().settings))
    paths = {name: str(getattr(files, name)) for name in ("examples", "products", "categories")}
    options = {"locale": "us", "small_version": True, "profile": "paper", "catalogue": "train", "valid_seed": 42}
    assert settings == paths | options
