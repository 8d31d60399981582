"""Settings of an index from recipe, `--set` and options."""

from typing import TYPE_CHECKING, Any

from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.index import IndexConfig


def index_config(
    recipe: str | None,
    settings: list[str],
    options: dict[str, Any],
    *,
    levels: int | None,
    codes: str | None,
    dim: int | None,
    seed: int | None,
    shape: str | None = None,
) -> "IndexConfig":
    """Combine recipe, `--set` and options; the last wins."""
    from restd.config import merge, parse_settings, read_recipe
    from restd.index import IndexConfig, with_shape

    last = {"index": options} if shape is None else {"index": options, "shape": {"mode": shape}}
    sections = merge(read_recipe(recipe) if recipe else {}, parse_settings(settings), last)
    return with_shape(IndexConfig.read(sections), levels=levels, codes=_codebook_sizes(codes), dim=dim, seed=seed)


def _codebook_sizes(text: str | None) -> int | tuple[int, ...] | None:
    if text is None or text == "auto":
        return None if text is None else 0
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--codes must be auto, a number, or numbers such as 64,128,256; got {text!r}.") from None
    return sizes[0] if len(sizes) == 1 else sizes


def refuse_stated_shape(settings: list[str], options: dict[str, Any]) -> None:
    """What is measured cannot be stated as well."""
    from restd.config import parse_settings
    from restd.quantize import QUANTIZERS

    stated = [name for name, value in options.items() if value is not None]
    for section, values in parse_settings(settings).items():
        if section in QUANTIZERS:
            stated += [f"--set {section}.{name}" for name in ("levels", "codes", "dim") if name in values]
    if stated:
        raise ConfigError(
            f"{stated[0]} has no effect with --shape auto, which measures it. Remove one of them, or limit what is "
            "tried: --set shape.widths=[64], shape.levels, shape.codes."
        )
