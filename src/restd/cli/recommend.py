"""`restd recommend`: what a user will want next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.command import warn_deprecated
from restd.cli.console import note, show_json, show_table
from restd.cli.device import use_device
from restd.cli.options import (
    Allow,
    Beam,
    Deny,
    Explain,
    Hits,
    Json,
    Model,
    OptionalIndex,
    OptionalItems,
    SearchDevice,
    Where,
    search_options,
)
from restd.cli.search import hit_record, show_explanation, show_hits
from restd.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from restd.data import History
    from restd.search import Retriever

_SHOWN = 5
"""Number of items of a history that are printed, the latest."""


def recommend(
    model: Model,
    history: Annotated[
        list[str] | None,
        typer.Option(help="Id of an item of the history, oldest first (repeatable): --history A --history B."),
    ] = None,
    histories: Annotated[
        Path | None,
        typer.Option(help="Many histories: a table of user, item and time, or a JSON object of item lists by user."),
    ] = None,
    user: Annotated[str, typer.Option(help="Id of the user, for models with user tokens (tiger.users).")] = "",
    k: Hits = 10,
    seen: Annotated[
        bool, typer.Option("--seen/--unseen", help="Whether items of the history may be recommended again.")
    ] = False,
    where: Where = None,
    deny: Deny = None,
    allow: Allow = None,
    explain: Explain = None,
    beam: Beam = None,
    index: OptionalIndex = None,
    catalog: OptionalItems = None,
    device: SearchDevice = None,
    as_json: Json = False,
) -> None:
    """Recommend the next items after a history, or explain why an item was found or lost."""
    from restd.search import Retriever

    device = use_device(device)
    if (history is None) == (histories is None):
        raise ConfigError("Pass either --history ID (repeatable) or --histories FILE.")
    options = search_options(k=k, beam=beam, where=where, allow=allow, deny=deny, seen=seen)
    retriever = Retriever.load(model, index, catalog, device=device)
    requests = _histories(history, histories, user, retriever)
    explanation = None
    if explain is not None:
        if len(requests) > 1:
            raise ConfigError("--explain needs a single history, not --histories.")
        if not seen and explain in requests[0].items:
            raise ConfigError(f"{explain} is in the history, and such items are left out. Include them with --seen.")
        explanation = retriever.explain(requests[0], explain, options=options)
        if as_json:
            show_json(explanation.to_dict())
            return
    results = retriever.recommend(requests, options=options)
    if as_json:
        records = [
            {"user": request.user, "history": list(request.items), "hits": [hit_record(hit) for hit in hits]}
            for request, hits in zip(requests, results, strict=True)
        ]
        show_json(records[0] if history is not None else records)
        return
    for request, hits in zip(requests, results, strict=True):
        last = request.items[-_SHOWN:]
        rows = list(zip(retriever.titles(last), last, strict=True))
        show_table(f"{request.user or 'History'}: the last of {len(request.items)}", ("title", "item"), rows)
        show_hits("Next", hits)
    if explanation is not None:
        show_explanation(explanation)


def _histories(history: list[str] | None, histories: Path | None, user: str, retriever: "Retriever") -> "list[History]":
    from restd.data import Histories, History
    from restd.data.history_sources import is_json, read_lists

    if user and (histories is not None or not retriever.backbone.knows_users):
        reason = "the file names its users" if histories is not None else "the model has no tokens for users"
        raise ConfigError(f"--user has no effect here: {reason}. Remove it.")
    if history is not None:
        return [History(history_items(history, retriever.index.table.ids), user)]
    assert histories is not None
    whole = Histories.of_table(read_lists(histories)).once() if is_json(histories) else Histories.read(histories)[0]
    known, unknown = whole.over(retriever.index.table.ids)
    if unknown:
        note(f"{unknown:,} events name items that are not in the index; they are left out")
    return [known.history(number, end=int(known.first[number + 1])) for number in range(len(known))]


def history_items(values: list[str], ids: "pa.Array | pa.ChunkedArray") -> tuple[str, ...]:
    """Item ids as they were passed; a single value with a comma that is not an id itself is the old form `ID,ID`."""
    from restd._arrow import pc

    if len(values) > 1 or "," not in values[0]:
        return tuple(values)
    if pc.any(pc.equal(ids, values[0])).as_py():
        return tuple(values)
    warn_deprecated("--history ID,ID", "--history ID --history ID")
    return tuple(filter(None, (part.strip() for part in values[0].split(","))))
