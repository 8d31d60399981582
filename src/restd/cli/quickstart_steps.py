"""Steps of `restd quickstart` that a search and a recommender have in common."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restd.cli.console import notify, show
from restd.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from restd.analyses import AnalysisResult
    from restd.data import Task
    from restd.train import Job

INDEX, MODEL, BUNDLE, REPORT, SUMMARY = "index", "model", "bundle", "report", "summary.json"
_CODES = 256
"""Most codes per level."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every step needs to know.

    Args:
        data: folder of items with judgments or histories.
        out: folder for all results.
        minutes: about how long to train.
        seed: of weights, batches and dropout.
        device: where to encode and train; None for the best one.
        encoder: of the items; None for one that fits their language.
    """

    data: Path
    out: Path
    minutes: float
    seed: int
    device: str | None
    encoder: str | None


def build(plan: Plan, recipe: str, settings: list[str]) -> Path:
    """Build the index, or keep the one that is there; its folder."""
    from restd.cli.index_settings import index_config
    from restd.data import Catalog
    from restd.index import build_index

    catalog = Catalog(plan.data)
    codes = min(_CODES, 1 << max(1, (len(catalog.ids()) // 4).bit_length() - 1))  # several items per code
    options: dict[str, Any] = {} if plan.encoder is None else {"encoder": plan.encoder}
    config = index_config(recipe, settings, options, levels=None, codes=str(codes), dim=None, seed=None)
    build_index(catalog, plan.out / INDEX, config, judgments=plan.data, device=plan.device, notify=notify)
    return plan.out / INDEX


def chosen_epochs(
    plan: Plan, recipe: str, settings: list[str], index: Path, *, most: int, task: "Task" = "search"
) -> "Job":
    """The training run, as long as the time allows; what was chosen the first time stays.

    Args:
        plan: data, time and seed.
        recipe: of the training.
        settings: settings on top of it, as `--set` takes them.
        index: folder of the index.
        most: epochs, however much time there is.
        task: what the model is for.
    """
    from restd.cli.train import configure
    from restd.train import Job
    from restd.train.estimate import estimate_cost
    from restd.train.run import make_loop

    if not plan.minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {plan.minutes:g}.")
    model, config = configure(recipe, settings, task=task, options={"seed": plan.seed})
    job = Job(index, plan.data, plan.out / MODEL, model, config, None, None, plan.device)
    chosen = plan.out / "epochs.json"
    if chosen.is_file():
        epochs = int(json.loads(chosen.read_text(encoding="utf-8"))["epochs"])
    else:
        loop = make_loop(job, notify=notify)
        epoch = loop.plan.updates_per_epoch * estimate_cost(loop).seconds
        epochs = max(1, min(most, int(60 * plan.minutes / epoch)))
        chosen.write_text(json.dumps({"epochs": epochs}) + "\n", encoding="utf-8")
    notify(f"Training for {epochs} {'epoch' if epochs == 1 else 'epochs'}; the limit is about {plan.minutes:g} minutes")
    return replace(job, config=replace(config, train=replace(config.train, epochs=epochs)))


def train_job(job: "Job") -> None:
    """Train, with early stopping as the recipe has it; an interrupted run goes on."""
    from restd.evaluate import beam_negatives, ranked_validation
    from restd.train import train_retriever

    train_retriever(job, notify=notify, validate=ranked_validation(job), refresh=beam_negatives(job))


def write_report(result: "AnalysisResult", out: Path) -> Path | None:
    """A page with table and picture; needs the extra `report`, and says so where it is missing."""
    from restd.report.page import write_page

    try:
        return write_page([result], out / REPORT, title=f"ResTD: {out.resolve().name}")
    except MissingExtraError as error:
        notify(f"No report: {error}")
        return None


def list_results(page: Path | None, out: Path) -> None:
    """Print where the results are."""
    for path, what in ((page, "report"), (out / SUMMARY, "figures"), (out / BUNDLE, "model, index and items")):
        if path is not None:
            show(f"{path}: {what}")
