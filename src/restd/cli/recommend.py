"""`restd recommend`: what a user will want next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import note, show_json, show_table
from restd.cli.search import Allow, Deny, Explain, Index, Items, Json, Where, plain_hit, show_explanation
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import History
    from restd.search import Retriever

_SHOWN = 5
"""Items of a history that are shown, the latest."""


def recommend(
    model: Annotated[Path, typer.Option(help="A run of restd train --task recommend, or what Retriever.save wrote.")],
    history: Annotated[str | None, typer.Option(help="Ids of the items taken so far, the latest last: id,id,…")] = None,
    histories: Annotated[
        Path | None, typer.Option(help="Many histories: a table of user, item and time, or JSON {user: [item, …]}.")
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

    retriever = Retriever.load(model, index, catalog)
    asked = _asked(history, histories, user, retriever)
    options: dict[str, Any] = {"where": where or (), "deny": deny or (), "allow": allow, "width": width}
    found = None
    if explain is not None:
        if len(asked) > 1:
            raise ConfigError("--explain wants one history.")
        if not seen and explain in asked[0].items:
            raise ConfigError(f"{explain} is in the history, and such items are left out; let them in with --seen.")
        taken = () if seen else asked[0].items
        # the beam whose list is shown, and its ranks: without what is left out
        same = {"width": max(width, k) + len(taken), "deny": [*(deny or ()), *taken]}
        found = retriever.explain(asked[0], explain, **{**options, **same})
        if as_json:
            show_json(found.to_dict())
            return
    answers = retriever.recommend(asked, k, seen=seen, **options)
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


def _asked(history: str | None, histories: Path | None, user: str, retriever: "Retriever") -> "list[History]":
    from restd.data import Histories, History
    from restd.data.sequences import is_json, read_lists
    from restd.models import TigerBackbone

    if (history is None) == (histories is None):
        raise ConfigError("Either --history id,id,… or --histories FILE is wanted.")
    knows_users = isinstance(retriever.backbone, TigerBackbone) and retriever.backbone.config.users > 0
    if user and (histories is not None or not knows_users):
        why = "the file names its users" if histories is not None else "the model has no tokens for users"
        raise ConfigError(f"--user says nothing here: {why}.")
    if history is not None:
        return [History(tuple(filter(None, (part.strip() for part in history.split(",")))), user)]
    assert histories is not None
    whole = Histories.of_table(read_lists(histories)).once() if is_json(histories) else Histories.read(histories)[0]
    held, unknown = whole.over(retriever.index.table.ids)
    if unknown:
        note(f"{unknown:,} events name items that the index does not have; they are left out")
    return [held.history(number, end=int(held.first[number + 1])) for number in range(len(held))]
