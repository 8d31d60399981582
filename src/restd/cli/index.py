"""`restd index`: build an index or import one, add and remove items, inspect."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.columns import column_pairs, text_columns
from restd.cli.command import ShortFormGroup, add_command, examples, warn_deprecated
from restd.cli.console import notify, show, show_json, warn
from restd.cli.device import use_device
from restd.cli.index_quality import report_quality
from restd.cli.index_settings import index_config, refuse_stated_shape
from restd.cli.options import ColumnMap, Device, IndexFolder, IndexRecipe, Json, TextColumns
from restd.errors import ArtifactError, ConfigError, RestdError

if TYPE_CHECKING:
    from restd.data import Catalog
    from restd.encode import Encoder
    from restd.index import SidIndex

Codebooks = Annotated[
    Path | None,
    typer.Option(
        help="Codebooks of the SIDs: .npy of shape (level, code, dim), or .safetensors with one (code, dim) per level."
    ),
]
Latents = Annotated[Path | None, typer.Option(help="Vectors that were quantised, .npy of shape (item, dim).")]


def build(
    out: Annotated[
        Path, typer.Option(help="Folder for the index and its intermediate stages; repeat the command to continue.")
    ],
    catalog: Annotated[
        Path | None,
        typer.Option(help="Table of items (.csv, .tsv, .jsonl or .parquet), or a folder made by restd data."),
    ] = None,
    judgments: Annotated[
        Path | None,
        typer.Option(
            help="Table or folder of judged queries, used to align items with queries. Default: those in the folder "
            "of --catalog, if any."
        ),
    ] = None,
    column_map: ColumnMap = None,
    text: TextColumns = None,
    separator: Annotated[str, typer.Option(help="Separator inside category paths that are one string.")] = " > ",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Text encoder: a name, or the hub id or folder of a sentence-transformers model. Default: auto, which "
            "chooses by language."
        ),
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Your own item vectors, .npy or parquet, instead of encoding texts.")
    ] = None,
    vector_column: Annotated[str, typer.Option(help="Column of --vectors, if it is a parquet file.")] = "vector",
    quantizer: Annotated[str | None, typer.Option(help="How vectors become codes. Default: kmeans.")] = None,
    levels: Annotated[
        int | None, typer.Option(help="Number of levels, that is, codes per Semantic ID. Default: 4.")
    ] = None,
    codes: Annotated[
        str | None,
        typer.Option(
            help="Codes per level: one number (256), one per level (64,128,256), or auto, which chooses by the number "
            "of items. Default: auto."
        ),
    ] = None,
    codebooks: Annotated[Path | None, typer.Option(hidden=True)] = None,
    latents: Annotated[Path | None, typer.Option(hidden=True)] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the vectors that are quantised. Default: 32.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="What happens to items that get the same codes. Default: single_substitution."),
    ] = None,
    balanced: Annotated[
        bool | None,
        typer.Option("--balanced", help="Use all codes of a level about equally often, at some cost in error."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="explicit: --dim, --levels and --codes as stated (the default). auto: try several on validation "
            "queries, and take the cheapest whose Semantic IDs rank almost as well as the best."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the quantiser. Default: 0.")] = None,
    recipe: IndexRecipe = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any setting, as SECTION.NAME=VALUE: rqvae.epochs=50 (repeatable). It overrides the recipe. Sections: "
            "index, align, shape, and one per quantiser.",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Build an index: encode items, fit codebooks, assign codes, resolve collisions, report quality.

    Stages whose inputs have not changed are reused; an interrupted build continues where it stopped.
    """
    from restd.data import Catalog
    from restd.index import ShapeReport, build_index
    from restd.index.config import refuse_unused

    device = use_device(device)
    if codes is not None and Path(codes).suffix and not codes.replace(".", "").isdigit():
        build_options = {
            "--catalog": catalog, "--policy": policy, "--levels": levels, "--dim": dim, "--vectors": vectors
        }  # fmt: skip
        if unused := [name for name, value in build_options.items() if value is not None]:
            raise ConfigError(f"{unused[0]} has no effect when SIDs are imported from {codes}. Remove it.")
        warn_deprecated("restd index --codes TABLE", "restd index import TABLE")
        _import(Path(codes), out, codebooks=codebooks, latents=latents, column_map=column_map, as_json=as_json)
        return
    if catalog is None:
        raise ConfigError("--catalog is missing. Pass a table of items, or import SIDs with restd index import TABLE.")
    if codebooks is not None or latents is not None:
        raise ConfigError("--codebooks and --latents belong to an import: use restd index import TABLE.")
    index_settings = {"encoder": encoder, "quantizer": quantizer, "policy": policy, "balanced": balanced}
    options = {name: value for name, value in index_settings.items() if value is not None}
    judgments = judgments or _judgments_beside(catalog)
    config = index_config(recipe, settings or [], options, levels=levels, codes=codes, dim=dim, seed=seed, shape=shape)
    refuse_unused(config, policy_stated=policy is not None)
    if config.shape.mode == "auto":
        refuse_stated_shape(settings or [], {"--levels": levels, "--codes": codes, "--dim": dim})
    items = Catalog(catalog, columns=column_pairs(column_map), text=text_columns(text), category_separator=separator)
    index = build_index(
        items,
        out,
        config,
        judgments=judgments,
        vectors=vectors,
        vector_column=vector_column,
        device=device,
        notify=notify,
    )
    kept = None if judgments is None else _kept_where_possible(out, items, judgments)
    shapes = ShapeReport.load(out) if config.shape.mode == "auto" else None
    report_quality(index, out, as_json=as_json, kept=kept, shapes=shapes)


def _judgments_beside(catalog: Path) -> Path | None:
    """The folder itself where it has judgments."""
    from restd.data.dataset import optional_table

    return catalog if catalog.is_dir() and optional_table(catalog, "judgments") is not None else None


def import_sids(
    table: Annotated[
        Path, typer.Argument(help="Table with a column id, and a list column sid or one column per level.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the index.")],
    codebooks: Codebooks = None,
    latents: Latents = None,
    column_map: ColumnMap = None,
    as_json: Json = False,
) -> None:
    """Import Semantic IDs that were made elsewhere.

    Without codebooks and latents the index can be searched, but nothing can be distilled from it.
    """
    _import(table, out, codebooks=codebooks, latents=latents, column_map=column_map, as_json=as_json)


def _import(
    table: Path,
    out: Path,
    *,
    codebooks: Path | None,
    latents: Path | None,
    column_map: list[str] | None,
    as_json: bool,
) -> None:
    from restd.artifacts import sole_writer
    from restd.index import import_index
    from restd.index.build import refuse_foreign_folder
    from restd.index.sid_index import FOLDER

    refuse_foreign_folder(out)
    if (out / "embeddings").exists():
        raise ConfigError(f"{out} contains an index that was built from a catalogue. Choose another --out.")
    notify(f"Importing the SIDs of {table}")
    index = import_index(table, codebooks=codebooks, latents=latents, columns=column_pairs(column_map))
    with sole_writer(out):
        index.save(out / FOLDER)
    report_quality(index, out, as_json=as_json)


def inspect(
    folder: Annotated[Path, typer.Argument(help="Folder of the index, as restd index wrote it.")],
    png: Annotated[Path | None, typer.Option(help="Also draw the report as a picture, to this file.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data folder with judged queries: also measure how well embeddings, latents and Semantic IDs rank."
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Report the quality of an index: use of codes, collisions, quantisation error, neighbours."""
    from restd.index import SidIndex

    use_device(device)  # the encoder, which reads the queries of --data, takes what is left
    kept = None if data is None else _kept(folder, data, data)
    report_quality(SidIndex.load(folder), folder, as_json=as_json, png=png, write=False, kept=kept)


def _kept_where_possible(out: Path, catalog: "Catalog", judgments: Path) -> dict[str, dict[str, float]] | None:
    """What the index keeps, as `inspect --data` measures it; a finished index is not lost where that cannot be done."""
    try:
        return _kept(out, catalog, judgments)
    except RestdError as error:
        notify(f"What the index keeps was not measured: {error}")
        return None


def _kept(folder: Path, catalog: "Path | Catalog", data: Path) -> dict[str, dict[str, float]]:
    from restd.evaluate.kept import measure_kept
    from restd.snapshot import Snapshot

    notify("Ranking validation queries by embeddings, latents and Semantic IDs")
    return measure_kept(Snapshot.load(folder, catalog), data, folder)


def add(
    folder: IndexFolder,
    catalog: Annotated[Path, typer.Option(help="Table of the new items.")],
    column_map: ColumnMap = None,
    text: Annotated[
        str | None,
        typer.Option(help="Columns to encode, separated by commas. Default: those of the first table."),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(help="Separator inside category paths that are one string. Default: that of the first table."),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Give new items Semantic IDs; existing Semantic IDs and the codebooks do not change.

    The table is read like the one the index was built from, unless --map, --text or --separator is passed.
    """
    from dataclasses import asdict

    import numpy as np

    from restd.artifacts import sole_writer
    from restd.data import Catalog
    from restd.encode import encode_texts

    device = use_device(device)
    with sole_writer(folder):
        index = _load_extensible(folder)
        reading = index.origin["reading"]
        items = Catalog(
            catalog,
            columns=column_pairs(column_map) or reading["columns"],
            text=text_columns(text) or tuple(reading["text"]),
            category_separator=separator or reading["separator"],
        )
        ids = items.ids().to_pylist()
        encoder = _encoder_of(index, folder, device)
        notify(f"Encoding {len(ids):,} new items")
        texts = [text for batch in items.batches() for text in items.texts(batch).to_pylist()]
        if empty := sum(not text for text in texts):
            warn(f"{empty:,} new items have no text, so their codes are arbitrary.")
        extended, drift = index.add(ids, np.asarray(encode_texts(encoder, texts)))
        _replace_index(extended, folder)
    show_json({**asdict(drift), "drifted": drift.drifted}) if as_json else show(drift.sentence())


def remove(
    folder: IndexFolder,
    ids: Annotated[str | None, typer.Option(help="Ids of the items to remove, separated by commas.")] = None,
    single_ids: Annotated[
        list[str] | None, typer.Option("--id", help="Id of one item to remove; may contain commas (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove items from an index; the others keep their Semantic IDs."""
    from restd.artifacts import sole_writer
    from restd.index import SidIndex

    names = [*(single_ids or []), *(name.strip() for name in (ids or "").split(",") if name.strip())]
    if not names:
        raise ConfigError("No items to remove. Pass --ids ID,ID or --id ID.")
    with sole_writer(folder):
        index = SidIndex.load(folder)
        reduced = index.remove(names)
        _replace_index(reduced, folder)
    removed = len(index) - len(reduced)
    if as_json:
        show_json({"removed": removed, "items": len(reduced)})
    else:
        show(f"{removed:,} items removed, {len(reduced):,} left.")


def _load_extensible(folder: Path) -> "SidIndex":
    from restd.index import SidIndex

    index = SidIndex.load(folder)
    if index.quantizer is None:
        raise ConfigError(
            f"{folder} {index.why_no_quantizer}, so new items cannot be assigned codes. Build an index of all "
            "items with restd index build instead."
        )
    return index


def _encoder_of(index: "SidIndex", folder: Path, device: str | None) -> "Encoder":
    """Load the encoder of the index; the embeddings beside it must be of the same one."""
    from restd.encode import Embeddings

    embeddings_folder = folder / "embeddings"
    if not embeddings_folder.is_dir():
        raise ConfigError(
            f"{folder} has no embeddings beside the index, so its encoder is unknown. Pass the folder that restd index "
            "build wrote, or add items from Python with your own vectors (index.add)."
        )
    embeddings = Embeddings.open(embeddings_folder)
    expected = index.origin["encoder"]
    if embeddings.settings["encoder"] != expected:
        raise ArtifactError(
            f"The index in {folder} was made with {expected}, but {embeddings_folder} with "
            f"{embeddings.settings['encoder']}. Run restd index build again, then add the items."
        )
    return embeddings.encoder(device=device)


def _replace_index(index: "SidIndex", folder: Path) -> None:
    from restd.artifacts import read_manifest
    from restd.index.sid_index import FOLDER

    target = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    manifest = read_manifest(target)
    index.save(target, parents={**manifest.parents, "index": manifest.content})
    for stale in ("quality.json", "quality.png"):
        (folder / stale).unlink(missing_ok=True)


app = typer.Typer(
    cls=ShortFormGroup,
    help="Build an index of Semantic IDs, import one, add and remove items, inspect it.\n\n"
    "restd index --catalog … is short for restd index build --catalog …",
    no_args_is_help=True,
    epilog=examples(
        "restd index --catalog items.csv --map id=sku --map title=name --out my-index",
        "restd index inspect my-index",
        "restd index add --index my-index --catalog new-items.csv",
    ),
)
add_command(
    app,
    "build",
    build,
    epilog=examples(
        "restd index build --catalog items.csv --map id=sku --map title=name --out my-index",
        "restd index build --catalog my-data --recipe product-index --out my-index",
        "restd index build --catalog my-data --vectors items.npy --levels 3 --codes 256 --out my-index",
    ),
)
add_command(app, "import", import_sids)
add_command(app, "add", add)
add_command(app, "remove", remove)
add_command(app, "inspect", inspect)
