"""Write docs/systems.md: every system that can be compared, from the registry, and the budgets of the package.

    python docs/make_systems.py

Names, sentences and settings are those of the code, so the page cannot say anything else. A test makes it again and
compares.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

from restd.systems import SYSTEMS, Budget, SystemSpec, budget_names, read_budget, resolve_system
from restd.systems.registry import Sections

PAGE = Path(__file__).parent / "systems.md"
HEAD = """# Systems

A *system* is a way to search by name: an identifier scheme, a backbone and an objective, or a ranker that does not
generate. The paper compares ResTD with those below. `restd compare --systems` puts them into one table, on your data,
under one protocol and one training budget. This page is made from the registry by `docs/make_systems.py`.

```sh
restd data shop --items 5000 --out shop
restd compare --systems all --data shop --out systems --budget small     # every system, with and without ResTD
restd compare --systems tiger,calir --data shop --out systems --seeds 2027,2028     # two more seeds for two of them
restd report systems
```

[Comparing systems](evaluation.md#comparing-systems) says how they are compared, what is shared and what it costs.
"""
OWN = """## A system of your own

A system is one value that names entries of other registries, so adding one is one call. `restd compare` knows it if
the module is imported, which an entry point of the group `restd.systems` does for a package.

```python
from restd.systems import SYSTEMS, SystemSpec, read_budget, resolve_system

SYSTEMS.add(
    SystemSpec(
        "short",
        "TIGER with two levels and residual k-means.",
        source="",
        label="Short",
        index={"index": {"quantizer": "kmeans", "policy": "suffix"}, "kmeans": {"levels": 2}},
        train={"model": {"backbone": "compact"}},
    )
)
short = resolve_system(SYSTEMS["short"], read_budget("small"))
print(short.index.fit.levels, short.config.train.updates, short.takes_restd)  # 2 3000 True
```
"""
BUDGETS = """## Budgets

A budget says what all systems share: the length of training, the batch, the pairs, the size of the backbone and of the
codes. It is a TOML file with the sections of [settings](settings.md), except those that choose parts of a system; the
section `[quantizer]` is for whichever quantiser a system has, and what the system itself states wins over that section
alone. `--budget FILE.toml` reads one of your own, and `--set` changes single settings.
"""


def flat(sections: Sections) -> str:
    """Settings as `--set` takes them."""
    settings = [
        f"`{section}.{name}={json.dumps(value) if isinstance(value, (bool, list)) else value}`"
        for section, values in sections.items()
        for name, value in values.items()
    ]
    return ", ".join(settings)


def remarks(spec: SystemSpec) -> str:
    """What the docstring of a system's file says after its first sentence."""
    module: Any = next((m for m in sys.modules.values() if getattr(m, "__name__", "") == home(spec)), None)
    _, _, rest = (inspect.getdoc(module) or "").partition("\n\n")
    return " ".join(rest.split())


def home(spec: SystemSpec) -> str:
    """The module that registers a system of ours."""
    return f"restd.systems.{spec.name.replace('-', '_')}"


def part(spec: SystemSpec, budget: Budget) -> str:
    """The section of one system."""
    resolved = resolve_system(spec, budget)
    needs = sorted(spec.needs - {"encoder"})
    lines = [f"### `{spec.name}`: {spec.label}", "", spec.summary]
    if more := remarks(spec):
        lines += ["", more]
    lines += ["", f"* **Source**: {spec.source or 'ours'}"]
    if spec.ranker:
        lines += [f"* **Ranker**: `{spec.ranker}`"]
        if spec.train:
            lines += [f"* **Settings**: {flat(spec.train)}"]
    else:
        lines += [f"* **Index**: {flat(spec.index)}", f"* **Training**: {flat(spec.train)}"]
        lines += [f"* **ResTD over it**: {'yes' if resolved.takes_restd else f'no, as {resolved.refusal}'}"]
    if needs:
        names = {"categories": "categories of the items", "queries": "judged training queries"}
        lines += [f"* **Needs**: {' and '.join(names[need] for need in needs)}"]
    return "\n".join([*lines, ""])


def made() -> str:
    """The page."""
    small = read_budget("small")
    rows = [
        f"| [`{spec.name}`](#{spec.name}-{anchor(spec.label)}) | {spec.label} | {spec.summary} |"
        for spec in SYSTEMS.entries()
    ]
    table = "\n".join(["| name | in tables | what it is |", "|---|---|---|", *rows, ""])
    budgets = [
        f"### `{name}`\n\n{read_budget(name).summary}\n\n{flat(read_budget(name).sections)}\n"
        for name in budget_names()
    ]
    return "\n".join(
        [HEAD, table, "## One by one\n", *(part(spec, small) for spec in SYSTEMS.entries()), BUDGETS, *budgets, OWN]
    )


def anchor(text: str) -> str:
    """The end of a heading's anchor."""
    return "".join(letter for letter in text.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
