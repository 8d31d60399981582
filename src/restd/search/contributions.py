"""The score of a hybrid search taken apart: what each part said about an item, and what of its score comes from it."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from restd.search.answers import PartScore
from restd.search.candidates import CandidateTable, usable_weights


def part_scores(
    table: CandidateTable, weights: Mapping[str, float], rows: Int[np.ndarray, "query rank"]
) -> list[list[dict[str, PartScore]]]:
    """The parts of chosen candidates' scores, by name; none for a row that no part with weight proposed.

    Args:
        table: candidates of every query.
        weights: of the parts; those of weight 0 are left out.
        rows: candidates of each query; -1 for none.

    >>> every = np.ones((1, 2), bool)
    >>> scores = {"generator": np.array([[-1.0, -3.0]]), "bm25": np.array([[0.0, 4.0]])}
    >>> table = CandidateTable(np.array([[3, 8]]), scores, dict.fromkeys(scores, every))
    >>> part_scores(table, {"generator": 2.0, "bm25": 1.0}, np.array([[3]]))[0][0]["generator"]
    PartScore(score=-1.0, scaled=1.0, weight=2.0, share=2.0)
    """
    parts, known, of_new = usable_weights(weights)
    scaled, among = table.features(parts)
    raw = np.stack([table.scores[part] for part in parts], axis=-1)
    taken: list[list[dict[str, PartScore]]] = []
    for query, chosen in enumerate(rows):
        place_of = {row: place for place, row in enumerate(table.rows[query].tolist()) if among[query, place]}
        own: list[dict[str, PartScore]] = []
        for row in chosen.tolist():
            place = place_of.get(row)
            if place is None:
                own.append({})
                continue
            is_new = table.new is not None and table.new[query, place]
            values = zip(raw[query, place], scaled[query, place], of_new if is_new else known, strict=True)
            own.append({part: _part(*value) for part, value in zip(parts, values, strict=True)})
        taken.append(own)
    return taken


def _part(raw: float, scaled: float, weight: float) -> PartScore:
    score = float(raw) if np.isfinite(raw) else None
    return PartScore(score, float(scaled), float(weight), float(weight) * float(scaled))
