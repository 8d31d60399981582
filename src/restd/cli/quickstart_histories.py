"""`restd quickstart` for histories: a recommender beside simpler ones."""

import json
import time
from typing import TYPE_CHECKING, Any

from restd.cli.console import notify, show, show_json, show_table
from restd.cli.quickstart_steps import (
    BUNDLE,
    INDEX,
    SUMMARY,
    Plan,
    build,
    chosen_epochs,
    list_results,
    train_job,
    write_report,
)

if TYPE_CHECKING:
    from restd.analyses import AnalysisResult
    from restd.evaluate import Evaluation, TestSet
    from restd.search import Retriever

MODEL_NAME = "model"
BASELINES = ("popularity", "co-occurrence", "neighbours")
_EPOCHS = 25
"""Most passes over the histories, however much time there is."""


def quickstart_histories(plan: Plan, *, start: float, as_json: bool) -> None:
    """Index, train, measure on the last item of every user, and write a bundle.

    Args:
        plan: data, time and seed.
        start: when the command began, by the monotonic clock.
        as_json: print one JSON object.
    """
    from restd.evaluate import read_tests
    from restd.search import Retriever

    index = build(plan, "recommendation-index", [])
    job = chosen_epochs(plan, "tiger-small", [], index, most=_EPOCHS, task="recommend")
    train_job(job)
    retriever = Retriever.load(job.out, index, plan.data)
    tests = read_tests(plan.data, retriever.snapshot, split="test", task="recommend")
    notify(f"Measuring on {len(tests):,} users")
    evaluations = _measure(retriever, tests, plan)
    retriever.save(plan.out / BUNDLE)
    summary = {
        "rankers": {
            name: {measure.lower().replace("@", ""): own.mean(measure, level="item") for measure in own.values["item"]}
            for name, own in evaluations.items()
        },
        "seconds": round(time.monotonic() - start, 1),
    }
    (plan.out / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    result = board_of(evaluations)
    page = write_report(result, plan.out)
    if as_json:
        show_json(summary)
        return
    (table,) = result.tables
    show_table(table.title, table.columns, list(table.rows))
    show(" ".join(table.notes))
    list_results(page, plan.out)
    some = retriever.snapshot.ids[0].as_py()
    show(f"Recommend: restd recommend --model {plan.out / BUNDLE} --history {some}")
    show(f"Serve it:  restd serve --model {plan.out / BUNDLE}")


def _measure(retriever: "Retriever", tests: "TestSet", plan: Plan) -> "dict[str, Evaluation]":
    """The model and the simpler rankers, none of which lists what a user already has."""
    from restd.evaluate import NEXT, evaluate
    from restd.rankers import RankerContext, decoding_of, make_ranker
    from restd.search import RetrieverRanker, SearchOptions

    options = SearchOptions(seen=False)
    context = RankerContext(retriever.snapshot, plan.data, plan.out / INDEX, "recommend", seen=False)
    rankers: dict[str, tuple[Any, dict[str, Any]]] = {
        MODEL_NAME: (RetrieverRanker(retriever, options), options.card(task="recommend", routes=False))
    }
    rankers |= {name: (make_ranker(name, context), decoding_of(name, context)) for name in BASELINES}
    return {
        name: evaluate(ranker, tests, retriever.snapshot, name=name, measures=NEXT, decoding=decoding)[0]
        for name, (ranker, decoding) in rankers.items()
    }


def board_of(evaluations: "dict[str, Evaluation]") -> "AnalysisResult":
    """The model beside simpler rankers, with intervals, as a table and a picture."""
    from restd.analyses import AnalysisResult, Figure, Table
    from restd.analyses.result import best_of_columns
    from restd.evaluate import paired_difference

    model = evaluations[MODEL_NAME]
    measures, first = list(model.values["item"]), "NDCG@10"
    leads = {
        name: paired_difference(model.values["item"][first], own.values["item"][first])
        for name, own in evaluations.items()
        if name != MODEL_NAME
    }
    rows = [
        (
            name,
            *(f"{own.mean(measure, level='item'):.2f}" for measure in measures),
            f"{leads[name].mean:+.2f} [{leads[name].low:+.2f}, {leads[name].high:+.2f}]" if name in leads else "",
        )
        for name, own in evaluations.items()
    ]
    values = [[own.mean(measure, level="item") for measure in measures] for own in evaluations.values()]
    users = model.card.queries["judged"]
    table = Table(
        "recommenders",
        f"{users:,} users: the last item of each, from all before it (%)",
        ("", *measures, f"model's lead in {first}"),
        tuple(rows),
        ("Nobody is recommended what they already have. Brackets: 95 % interval of the paired difference over users.",),
        best_of_columns(values),
    )
    figure = Figure(
        "recommenders",
        f"{first} of every recommender",
        "bars",
        {
            "labels": list(evaluations),
            "series": {first: [own.mean(first, level="item") for own in evaluations.values()]},
            "ylabel": f"{first} (%)",
        },
    )
    strongest = max(leads, key=lambda name: evaluations[name].mean(first, level="item"))
    gap = leads[strongest]
    says = (
        f"The model has {model.mean(first, level='item'):.1f} {first}, {gap.mean:+.1f} [{gap.low:+.1f}, "
        f"{gap.high:+.1f}] against {strongest}, the best of the simpler ones."
    )
    return AnalysisResult(
        "recommenders",
        "What the recommender is worth",
        says,
        (table,),
        (figure,),
        {"lead": {name: lead.to_dict() for name, lead in leads.items()}},
    )
