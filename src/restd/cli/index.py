"""`restd index`, `inspect`, `add` and `remove`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import show, show_json, show_table, tell, warn
from restd.cli.data import column_pairs
from restd.errors import ArtifactError, ConfigError, MissingExtraError

if TYPE_CHECKING:
    from restd.data import Catalog
    from restd.encode import Encoder
    from restd.index import IndexConfig, IndexQuality, SidIndex

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Map = Annotated[list[str] | None, typer.Option("--map", help="Your column for one of ours: id=asin (repeatable).")]
Text = Annotated[str | None, typer.Option(help="Columns to encode, in order: title,brand (all text columns).")]


def index(
    out: Annotated[Path, typer.Option(help="Folder for the index and its stages.")],
    catalog: Annotated[
        Path | None, typer.Option(help="Items: .csv, .tsv, .jsonl, .parquet, or a folder made by restd data.")
    ] = None,
    column_map: Map = None,
    text: Text = None,
    separator: Annotated[str, typer.Option(help="What parts a category path written as one string.")] = " > ",
    encoder: Annotated[
        str | None, typer.Option(help="auto, minilm, use-multilingual, tfidf-svd, or a model's hub id or folder.")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Your own vectors, .npy or parquet, instead of encoding.")
    ] = None,
    vector_column: Annotated[str, typer.Option(help="Column of --vectors when it is parquet.")] = "vector",
    quantizer: Annotated[str | None, typer.Option(help="kmeans or rqvae.")] = None,
    levels: Annotated[int | None, typer.Option(help="Codes in a Semantic ID (4).")] = None,
    codes: Annotated[
        str | None,
        typer.Option(help="Codes per level: auto, 256, or 64,128,256; or a table of existing SIDs to import."),
    ] = None,
    codebooks: Annotated[
        Path | None, typer.Option(help="With --codes TABLE: its codebooks [level, code, dim].")
    ] = None,
    latents: Annotated[Path | None, typer.Option(help="With --codes TABLE: its latents [item, dim].")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the quantised space (32).")] = None,
    policy: Annotated[
        str | None, typer.Option(help="single_substitution, min_distortion, sinkhorn_last, suffix or none.")
    ] = None,
    balanced: Annotated[bool | None, typer.Option("--balanced", help="Use all codes of a level alike.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same machine, same codes.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe's name or your own .toml file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: rqvae.epochs=50 (repeatable).")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where the encoder runs: cpu, cuda, mps.")] = None,
    as_json: Json = False,
) -> None:
    """Make a Semantic-ID index: encode, fit codebooks, assign codes, resolve collisions, report."""
    from restd.index import build_index

    if codes is not None and Path(codes).suffix and not codes.replace(".", "").isdigit():
        beside = {"--catalog": catalog, "--policy": policy, "--levels": levels, "--dim": dim, "--vectors": vectors}
        if useless := [name for name, value in beside.items() if value is not None]:
            raise ConfigError(f"{useless[0]} means nothing when SIDs are imported with --codes {codes}; leave it out.")
        made = _import(Path(codes), out, codebooks=codebooks, latents=latents, column_map=column_map)
    else:
        if catalog is None:
            raise ConfigError(
                "--catalog is missing: name a table of items, or import existing SIDs with --codes TABLE."
            )
        if codebooks is not None or latents is not None:
            raise ConfigError(
                "--codebooks and --latents belong to an import; name the table of SIDs with --codes TABLE."
            )
        index_settings = {"encoder": encoder, "quantizer": quantizer, "policy": policy, "balanced": balanced}
        given = {name: value for name, value in index_settings.items() if value is not None}
        config = _config(recipe, settings or [], given, levels=levels, codes=codes, dim=dim, seed=seed)
        items = _catalog(catalog, column_map, text, separator)
        made = build_index(items, out, config, vectors=vectors, vector_column=vector_column, device=device, tell=tell)
    _report(made, out, as_json=as_json)


def _config(
    recipe: str | None,
    settings: list[str],
    given: dict[str, Any],
    *,
    levels: int | None,
    codes: str | None,
    dim: int | None,
    seed: int | None,
) -> "IndexConfig":
    from restd.config import merge, parse_settings, read_recipe, read_section
    from restd.index import IndexConfig, with_shape
    from restd.quantize import KMeansConfig, RqVaeConfig

    sections = merge(read_recipe(recipe) if recipe else {}, parse_settings(settings), {"index": given})
    kinds = {"kmeans": KMeansConfig, "rqvae": RqVaeConfig}
    nested = {name: read_section(kind, sections.get(name, {}), section=name) for name, kind in kinds.items()}
    for section in sections:
        if section not in (*kinds, "index"):
            raise ConfigError(f"Section [{section}] means nothing to restd index; it has: index, {', '.join(kinds)}.")
    config = read_section(IndexConfig, {**sections.get("index", {}), **nested}, section="index")
    return with_shape(config, levels=levels, codes=_codes(codes), dim=dim, seed=seed)


def _codes(text: str | None) -> int | tuple[int, ...] | None:
    if text is None or text == "auto":
        return None if text is None else 0
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--codes {text!r} is neither auto, a number, numbers such as 64,128,256, nor a file."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _catalog(path: Path, column_map: list[str] | None, text: str | None, separator: str) -> "Catalog":
    from restd.data import Catalog

    return Catalog(path, columns=column_pairs(column_map), text=_text_columns(text), category_separator=separator)


def _import(
    codes: Path, out: Path, *, codebooks: Path | None, latents: Path | None, column_map: list[str] | None
) -> "SidIndex":
    from restd.artifacts import sole_writer
    from restd.index import import_index
    from restd.index.build import refuse_foreign_folder
    from restd.index.sid_index import FOLDER

    refuse_foreign_folder(out)
    if (out / "embeddings").exists():
        raise ConfigError(f"{out} holds an index that was built from a catalogue; import into another --out.")
    tell(f"Importing SIDs of {codes}")
    made = import_index(codes, codebooks=codebooks, latents=latents, columns=column_pairs(column_map))
    with sole_writer(out):
        made.save(out / FOLDER)
    return made


def inspect(
    folder: Annotated[Path, typer.Argument(help="An index, or the folder restd index made.")],
    png: Annotated[Path | None, typer.Option(help="Draw the picture to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Say how good an index is: codes, collisions, errors, neighbours; as text, JSON or a picture."""
    from restd.index import SidIndex

    _report(SidIndex.load(folder), folder, as_json=as_json, png=png, write=False)


def add(
    folder: Annotated[Path, typer.Option("--index", help="The folder restd index made.")],
    catalog: Annotated[Path, typer.Option(help="The new items.")],
    column_map: Map = None,
    text: Text = None,
    separator: Annotated[str | None, typer.Option(help="What parts a category path written as one string.")] = None,
    as_json: Json = False,
) -> None:
    """Give new items Semantic IDs without touching the old ones or the codebooks.

    The new items are read as the old ones were, unless --map, --text or --separator say otherwise.
    """
    from dataclasses import asdict

    import numpy as np

    from restd.artifacts import sole_writer
    from restd.data import Catalog
    from restd.encode import encode_texts

    with sole_writer(folder):
        old = _load_built(folder)
        reading = old.origin["reading"]
        items = Catalog(
            catalog,
            columns=column_pairs(column_map) or reading["columns"],
            text=_text_columns(text) or tuple(reading["text"]),
            category_separator=separator or reading["separator"],
        )
        ids = items.ids().to_pylist()
        encoder = _encoder_of(old, folder)
        tell(f"Encoding {len(ids):,} new items")
        texts = [text for batch in items.batches() for text in items.texts(batch).to_pylist()]
        if empty := sum(not text for text in texts):
            warn(f"{empty:,} new items have no text at all: their codes are arbitrary.")
        grown, drift = old.add(ids, np.asarray(encode_texts(encoder, texts)))
        _replace_index(grown, folder)
    show_json({**asdict(drift), "drifted": drift.drifted}) if as_json else show(drift.sentence())


def remove(
    folder: Annotated[Path, typer.Option("--index", help="The folder restd index made.")],
    ids: Annotated[str | None, typer.Option(help="Items to remove: id,id,…")] = None,
    single: Annotated[
        list[str] | None, typer.Option("--id", help="One item, whatever its id holds (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take items out of an index; the others keep their Semantic IDs."""
    from restd.artifacts import sole_writer
    from restd.index import SidIndex

    names = [*(single or []), *(name.strip() for name in (ids or "").split(",") if name.strip())]
    if not names:
        raise ConfigError("No items were named; give --ids id,id,… or --id ID.")
    with sole_writer(folder):
        old = SidIndex.load(folder)
        smaller = old.remove(names)
        _replace_index(smaller, folder)
    if as_json:
        show_json({"removed": len(old) - len(smaller), "items": len(smaller)})
    else:
        show(f"{len(old) - len(smaller):,} items removed, {len(smaller):,} left.")


def _load_built(folder: Path) -> "SidIndex":
    from restd.index import SidIndex

    found = SidIndex.load(folder)
    if found.quantizer is None:
        raise ConfigError(
            f"{folder} was imported without a quantiser, so it cannot take new items; build an index instead."
        )
    return found


def _encoder_of(index: "SidIndex", folder: Path) -> "Encoder":
    """Load the encoder the index was made with; the one kept beside it must be the same."""
    from restd.encode import Embeddings

    held = folder / "embeddings"
    if not held.is_dir():
        raise ConfigError(
            f"{folder} has no embeddings beside the index, so its encoder is not known; name the folder restd index "
            "made, or add items from Python with vectors of your own (index.add)."
        )
    embeddings = Embeddings.open(held)
    wanted = index.origin["encoder"]
    if embeddings.settings["encoder"] != wanted:
        raise ArtifactError(
            f"The index in {folder} was made with {wanted}, but {held} with {embeddings.settings['encoder']}; "
            "run restd index again, and add the items then."
        )
    return embeddings.encoder()


def _replace_index(changed: "SidIndex", folder: Path) -> None:
    from restd.artifacts import read_manifest
    from restd.index.sid_index import FOLDER

    home = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    manifest = read_manifest(home)
    changed.save(home, parents={**manifest.parents, "index": manifest.content})
    for stale in ("quality.json", "quality.png"):
        (folder / stale).unlink(missing_ok=True)


def _text_columns(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _report(made: "SidIndex", folder: Path, *, as_json: bool, png: Path | None = None, write: bool = True) -> None:
    import json

    from restd.artifacts.store import full_disk_told
    from restd.encode import Embeddings
    from restd.index import measure_quality
    from restd.report import draw_index

    held = folder / "embeddings"
    embeddings = None
    if made.quantizer is not None and held.is_dir():
        try:
            embeddings = Embeddings.open(held)
        except ArtifactError as error:  # only the error of embeddings goes unmeasured: the index itself is intact
            warn(str(error))
    tell("Measuring quality")
    quality = measure_quality(made, embeddings=embeddings)
    if write:
        with full_disk_told(folder):
            (folder / "quality.json").write_text(json.dumps(quality.to_dict(), indent=2) + "\n", encoding="utf-8")
        png = folder / "quality.png"
    if png is not None:
        try:
            with full_disk_told(png):
                draw_index(made, quality, png)
            tell(f"Picture: {png}")
        except MissingExtraError as error:
            if not write:
                raise
            tell(f"No picture: {error}")
    show_json(quality.to_dict()) if as_json else _print_quality(quality)


def _print_quality(quality: "IndexQuality") -> None:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    levels = quality.levels
    rows = [
        ("codes", *(str(level.codes) for level in levels)),
        ("used", *(str(level.used) for level in levels)),
        ("perplexity", *(f"{level.perplexity:.1f}" for level in levels)),
        ("Gini", *(f"{level.gini:.2f}" for level in levels)),
        ("prefixes", *(f"{level.prefixes:,}" for level in levels)),
        ("items a prefix", *(f"{level.items_per_prefix:,.1f}" for level in levels)),
        ("prefixes before it with one child", *(percent(level.single_child) for level in levels)),
        ("error left", *(percent(level.error) for level in levels)),
        ("neighbours with the same prefix", *(percent(level.neighbour_hits) for level in levels)),
        ("edited by collision repair", *(percent(level.edited) for level in levels)),
        ("stored code not the nearest", *(percent(level.conflict) for level in levels)),
    ]
    show_table("Quality", ("level", *(str(level.level) for level in levels)), rows)
    show(
        f"{quality.items:,} items, {quality.unique:.2%} unique SIDs. Before repair ({quality.policy}) "
        f"{quality.colliding_before:.1%} of items collided, in groups of up to {quality.largest_group_before:,}; "
        f"{quality.edited:.1%} were moved, {quality.colliding_after:.1%} still collide."
    )
    if quality.error_raw is not None:
        show(f"Quantisation error: {percent(quality.error_raw)} raw, {percent(quality.error_stored)} stored.")
    if quality.embedding_error is not None:
        show(f"Error of embeddings rebuilt from their codes: {percent(quality.embedding_error)} of their variance.")
    for sentence in quality.warnings:
        warn(sentence)
