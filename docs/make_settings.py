"""Write docs/settings.md: every setting of every section, from the dataclasses that read them.

    python docs/make_settings.py

Names, defaults and sentences are those of the code, so the page cannot say anything else. A test makes it again and
compares.
"""

import inspect
import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from restd.index.config import IndexChoices
from restd.models import BACKBONES, CategorySettings
from restd.quantize import QUANTIZERS, AlignConfig
from restd.rankers import RANKERS
from restd.train import DistillSettings, RankSettings, TrainConfig

PAGE = Path(__file__).parent / "settings.md"
HEAD = """# Settings

Every setting that `--set SECTION.NAME=VALUE` and recipes (`--recipe`, TOML files) can change. This page is made from
the code by `docs/make_settings.py`.

```sh
restd index build --catalog shop --set kmeans.codes=64 --set align.enabled=off --out index
restd train --index index --data shop --set compact.width=192 --set distill.weight=0.5 --out run
```

In a TOML file the same settings are:

```toml
[compact]
width = 192

[distill]
weight = 0.5
```

Options of a command override `--set`, and `--set` overrides the recipe. There are three more sections: `[model]` with
`backbone` and `objective`, and `[base]` and `[continuation]`, which are `[train]` for runs without and with `--init`.
"""
INDEX = "## For `restd index build`\n"
TRAIN = """## For `restd train` and `restd compare`

The defaults of `[train]` are those of the paper's continuation. A backbone has others: [training](training.md#mode) and
[recommendation](recommendation.md#tiger) have the most important ones, and `run.json` has those that a run used.
"""


RANK = """## For baselines of `restd evaluate` and `restd compare`

Baselines that are [trained](evaluation.md#baselines).
"""


def sentences(kind: type[Any]) -> dict[str, str]:
    """The sentence of each argument in the docstring, and in that of what it is based on."""
    found: dict[str, str] = {}
    for base in kind.__bases__:
        found |= {} if base is object else sentences(base)
    _, _, args = (inspect.getdoc(kind) or "").partition("Args:\n")
    name = ""
    for line in args.splitlines():
        if start := re.match(r"    (\w+): (.*)", line):
            name = start[1]
            found[name] = start[2]
        elif line.startswith("        ") and name:
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return found


def shown(field: Field[Any]) -> str:
    """The default as it is written in a TOML file, or a dash where there is none."""
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{json.dumps(value)}`" if isinstance(value, tuple) else f"`{value}`"


def table(name: str, kind: type[Any]) -> str:
    """One section: a row for each setting; those of a quantiser that it varies are only pointed to."""
    about = sentences(kind)
    parents = [other for other in QUANTIZERS.entries() if other.config in kind.__mro__[1:]]
    inherited = {field.name for other in parents for field in fields(other.config)}
    rows = [
        f"| `{field.name}` | {shown(field)} | {about[field.name][0].upper()}{about[field.name][1:]} |"
        for field in fields(kind)
        if field.name not in inherited
    ]
    head = [
        f"### `[{name}]`\n",
        *(f"All settings of `[{other.name}]`, with the same defaults, and:\n" for other in parents),
    ]
    return "\n".join([*head, "| setting | default | what it does |", "|---|---|---|", *rows, ""])


def made() -> str:
    """The page."""
    index = {"index": IndexChoices, "align": AlignConfig} | {kind.name: kind.config for kind in QUANTIZERS.entries()}
    train = {"train": TrainConfig, "distill": DistillSettings, "category": CategorySettings, "rank": RankSettings}
    train |= {kind.name: kind.config for kind in BACKBONES.entries()}
    rank = {kind.name: kind.config for kind in RANKERS.entries() if kind.config is not None}
    parts = [HEAD]
    for head, sections in ((INDEX, index), (TRAIN, train), (RANK, rank)):
        parts += [head, *(table(*each) for each in sections.items())]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
