"""Guesses of what the columns of a user's own table mean: by their names first, then by what is in them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from restd.data.own_columns import Guess, GuessedColumns, SampledTable, Tiers, plain_name, unique_columns
from restd.data.schema import SPLITS
from restd.errors import DataError


def _tiers(*tiers: str) -> Tiers:
    return tuple(frozenset(tier.split()) for tier in tiers)


_ID_NAMES: Final = (
    "itemid productid asin sku articleid articlenumber articleno artikelnummer itemnumber itemno productnumber "
    "productno productcode itemcode docid documentid corpusid movieid bookid songid trackid videoid recipeid paperid "
    "newsid listingid offerid pid identifier"
)
_WEAK_ID_NAMES: Final = "uid uuid guid isbn isbn13 ean gtin upc parentasin code key handle"
_ID: Final = _tiers("id", _ID_NAMES, _WEAK_ID_NAMES)
_TITLE: Final = _tiers(
    "title",
    "producttitle productname itemtitle itemname headline articletitle movietitle booktitle",
    "name displayname heading titel titulo titre nombre nom bezeichnung",
)
_CATEGORY: Final = _tiers(
    "category categories",
    "categorypath categoryname productcategory itemcategory producttype breadcrumb breadcrumbs taxonomy kategorie "
    "categoria categorie",
    "genre genres department",
)
_ITEM: Final = _tiers("item itemid", _ID_NAMES, "product doc document clickeditem clickedproduct clickeditemid", "id")
_QUERY: Final = _tiers(
    "query",
    "searchterm searchterms searchquery searchphrase searchstring searchtext searchkeyword querytext querystring q "
    "userquery suchbegriff",
    "keyword keywords search term phrase question",
)
_GRADE: Final = _tiers(
    "grade",
    "label relevance rel relevancelabel escilabel judgment judgement relevancegrade",
    "score rating gain",
    "purchases orders bought",
    "clicks click clicked clickcount numclicks count",
)
_SPLIT: Final = _tiers("split", "set fold subset partition")
_USER: Final = _tiers("user userid", "customer customerid visitor visitorid reviewerid", "session sessionid")
_TIME: Final = _tiers("time timestamp", "date datetime ts eventtime createdat unixtime unixreviewtime")
_NEVER_IDS: Final = _tiers("price stock year rating count quantity weight url image link date clicks")[0]
_PROSE: Final = _tiers("description text body summary abstract details content")[0]


def guess_item_columns(path: Path, *, columns: Mapping[str, str] | None = None) -> GuessedColumns:
    """Guess which columns of an item table are `id`, `title` and `category`; other columns keep their names.

    Args:
        path: a table that `read_batches` reads.
        columns: what is known already: our name to the file's.
    """
    table = SampledTable.look(path, option="--map")
    guess = Guess(table, columns or {}, known=("id", "title", "category"))
    guess.by_names("title", _TITLE, fits=table.is_title)
    guess.by_names("category", _CATEGORY, fits=None)
    _guess_id(guess)
    guess.by_content("title", [name for name in guess.free() if table.is_title(name)], "its texts are short and differ")
    if "title" not in guess.columns:
        texts = [name for name in guess.free() if table.is_text(name)]
        if not texts:
            raise DataError(
                f"{path} has no column of text; it has: {table.listed()}. An item needs a title or another text: add "
                "one, or pass --map title=NAME."
            )
        guess.remarks.append(f"No column was taken for the title; the items' text is in: {', '.join(texts)}.")
    return guess.result("items")


def guess_query_columns(
    path: Path, ids: Collection[str], *, columns: Mapping[str, str] | None = None
) -> GuessedColumns:
    """Guess which columns of a table of queries or clicks are `query` and `item`, and perhaps `grade` and `split`.

    A table with a user and no query is one of histories: then the columns are `user`, `item` and perhaps `time`.

    Args:
        path: a table that `read_batches` reads.
        ids: all ids of the items; the item column has values among them.
        columns: what is known already: our name to the file's.
    """
    table = SampledTable.look(path, option="--map-query")
    guess = Guess(table, columns or {}, known=("query", "item", "grade", "split", "user", "time"))
    known = ids if isinstance(ids, set | frozenset) else frozenset(ids)
    if "user" not in guess.columns:
        guess.by_names("query", _QUERY, fits=table.is_text)
    _guess_item(guess, known)
    if "query" not in guess.columns:
        guess.by_names("user", _USER, fits=None)
        if "user" in guess.columns:
            guess.by_names("time", _TIME, fits=None)
            order = "in order of time" if "time" in guess.columns else "in the order of the file"
            guess.remarks.append(f"{path.name} has users and no queries: it is read as histories, {order}.")
            return guess.result("histories")
        _guess_query(guess)
    guess.by_names("grade", _GRADE, fits=table.is_grade, needs="numbers of at least 0 or the labels E, S, C, I")
    guess.by_names("split", _SPLIT, fits=table.is_split, needs=f"the values {', '.join(SPLITS)}")
    if "grade" not in guess.columns:
        guess.remarks.append("No grade column: every row of the queries counts as a hit of grade 1.")
    if "split" not in guess.columns:
        guess.remarks.append("No split column: queries are split 80/10/10 by a hash of their text.")
    if unused := guess.free():
        guess.remarks.append(f"Columns of {path.name} that were not used: {', '.join(unused)}.")
    return guess.result("judgments")


def _guess_id(guess: Guess) -> None:
    if "id" in guess.columns:
        return
    path, free = guess.table.path, guess.free()
    for sure, tier in zip((True, True, False), _ID, strict=True):
        named = [column for column in free if plain_name(column) in tier]
        if not named:
            continue
        unique, rows = unique_columns(path, named)
        if len(named) == 1 and (sure or unique):
            guess.take("id", named[0], f"by its name; unique in all {rows:,} rows" if unique else "by its name")
            return
        if sure and len(unique) != 1:
            raise guess.ambiguous("id", named)
        if len(unique) == 1:
            guess.take("id", unique[0], f"by its name, and the only such one that is unique in all {rows:,} rows")
            return
    codes = [column for column in free if guess.table.is_code(column) and plain_name(column) not in _NEVER_IDS]
    unique, rows = unique_columns(path, codes)
    guess.by_content("id", unique, f"unique in all {rows:,} rows")
    if "id" not in guess.columns:
        guess.remarks.append(
            "No column has an id in every row, so the rows are numbered: row-1, row-2 and so on. Pass --map id=NAME if "
            "there is one."
        )


def _guess_item(guess: Guess, ids: Collection[str]) -> None:
    """Take the column whose values are ids of items; a name alone is not enough."""
    if "item" in guess.columns:
        return
    table, free = guess.table, guess.free()
    hits = {column: sum(value in ids for value in table.samples[column]) for column in free}
    if not any(hits.values()):
        first = min(ids, default=None)
        raise guess.missing(
            "item",
            f"none of the {table.rows:,} rows that were looked at has an id of the items table, where {first!r} is one."
            " Use the same ids in both tables, or choose their column there with --map id=NAME.",
        )
    rows = f"of the {table.rows:,} rows that were looked at"
    for tier in _ITEM:
        named = [column for column in free if plain_name(column) in tier and hits[column]]
        if len(named) > 1:
            raise guess.ambiguous("item", named)
        if named:
            guess.take("item", named[0], f"by its name; an id of the items in {hits[named[0]]:,} {rows}")
            return
    most = max(hits.values())
    best = [column for column in free if hits[column] == most]
    guess.by_content("item", best, f"an id of the items in {most:,} {rows}")


def _guess_query(guess: Guess) -> None:
    table = guess.table
    others = {name for tier in (*_TITLE, *_CATEGORY, *_SPLIT, *_GRADE, _PROSE) for name in tier}
    unnamed = [column for column in guess.free() if plain_name(column) not in others]
    texts = [column for column in unnamed if table.is_wordy(column, 0.3)]
    texts = texts or [column for column in unnamed if table.is_text(column) and not table.is_code(column)]
    repeating = [column for column in texts if len(set(table.samples[column])) < len(table.samples[column])]
    if len(texts) > 1 and len(repeating) == 1:
        guess.take("query", repeating[0], "the only text column that repeats")
        return
    guess.by_content("query", texts, "the only column of short texts")
    if "query" not in guess.columns:
        raise guess.missing("query", "none has short texts.")
