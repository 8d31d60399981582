"""Where a trained model's index and items are."""

import json
from pathlib import Path


def places(model: Path) -> dict[str, Path]:
    """Where a folder's index and items are: inside what `save` wrote, or where the training run found them."""
    if (model / "index").is_dir() and (model / "items").is_dir():
        return {"index": model / "index", "catalog": model / "items"}
    for run in (model / "run.json", model.parent / "run.json"):
        if run.is_file():
            told = json.loads(run.read_text(encoding="utf-8")).get("places", {})
            held = {name: (run.parent / place).resolve() for name, place in told.items()}
            return {name: place for name, place in held.items() if place.exists()}
    return {}
