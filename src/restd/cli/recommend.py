"""`restd recommend`: what a user will want next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import show_json, show_table
from restd.cli.search import Allow, Deny, Explain, Index, Items, Json, Where, plain_hit, show_explanation
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import History

_SHOWN = 5
"""Items of a history that are shown, the latest."""


def recommend(
    model: Annotated[Path, typer.Option(help="A run of restd train --task recommend, or what Retriever.save wrote.")],
    history: Annotated[str | None, typer.Option(help="Ids of the items taken so far, the latest last: id,id,…")] = None,
    histories: Annotated[
        Path | None, typer.Option(help="Many histories: a table of user, item and time; a list for each user.")
    ] = None,
    user: Annotated[str, typer.Option(help="Who it is, where the model has tokens for users.")] = "",
    k: Annotated[int, typer.Option("-k", help="Items wanted.")] = 10,
    seen: Annotated[bool, typer.Option("--seen/--unseen", help="May items of the history come back.")] = False,
    where: Where = None,
    deny: Deny = None,
    allow: Allow = None,
    explain: Explain = None,
    width: Annotated[int, typer.Option(help="Prefixes kept at every level.")] = 20,
    index: Index = None,
    catalog: Items = None,
    as_json: Json = False,
) -> None:
    """Recommend what comes next after a history; or explain why an item was found or lost."""
    from restd.search import Retriever

    asked = _asked(history, histories, user)
    retriever = Retriever.load(model, index, catalog)
    options: dict[str, Any] = {"where": where or (), "deny": deny or (), "allow": allow, "width": width}
    found = None
    if explain is not None:
        if len(asked) > 1:
            raise ConfigError("--explain wants one history.")
        found = retriever.explain(asked[0], explain, **options)
        if as_json:
            show_json(found.to_dict())
            return
    answers = [retriever.recommend(held, k, seen=seen, **options) for held in asked]
    if as_json:
        said = [
            {"user": held.user, "history": list(held.items), "hits": [plain_hit(hit) for hit in hits]}
            for held, hits in zip(asked, answers, strict=True)
        ]
        show_json(said[0] if history is not None else said)
        return
    for held, hits in zip(asked, answers, strict=True):
        last = held.items[-_SHOWN:]
        rows = list(zip(retriever.titles(last), last, strict=True))
        show_table(f"{held.user or 'Taken'}: the last of {len(held.items)}", ("title", "item"), rows)
        rows = [(hit.title, f"{hit.score:.3f}", hit.item, "-".join(map(str, hit.sid))) for hit in hits]
        show_table("Next", ("title", "score", "item", "Semantic ID"), rows)
    if found is not None:
        show_explanation(found)


def _asked(history: str | None, histories: Path | None, user: str) -> "list[History]":
    from restd.data import Histories, History, read_histories

    if (history is None) == (histories is None):
        raise ConfigError("Either --history id,id,… or --histories FILE is wanted.")
    if history is not None:
        return [History(tuple(filter(None, (part.strip() for part in history.split(",")))), user)]
    assert histories is not None
    held = Histories.of_table(read_histories(histories))
    return [held.history(number, end=int(held.first[number + 1])) for number in range(len(held))]
