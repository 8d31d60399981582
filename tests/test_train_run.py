"""Whole runs in a tiny world: objectives, pairing, what is kept, what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

from restd.data.pairs import read_examples
from restd.distill import HorizonHeads
from restd.errors import ArtifactError, ConfigError, DataError, TrainingError
from restd.evaluate import ranked_validation, read_tests
from restd.evaluate import validation as validations
from restd.evaluate.queries import validation_queries
from restd.index import SidIndex
from restd.models import CalirBackbone, open_model
from restd.snapshot import Snapshot
from restd.train import OBJECTIVES, read_log
from restd.train import loop as loops
from restd.train.estimate import Estimate
from restd.train.loop import Loop
from restd.train.run import make_loop
from tests.training import TINY, add_walks, job, make_index, plain_beam, run, same_weights, weights, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    add_walks(data)  # for the one backbone that reads them
    return make_index(data, folder / "index"), data


@pytest.fixture(scope="module")
def bases(world, tmp_path_factory):
    """A trained model of each backbone."""
    folder = tmp_path_factory.mktemp("bases")
    return {name: run(*world, folder / name, backbone=name).folder.parent for name in TINY}


def runs_of_every_objective():
    """Objectives that search negatives do so for texts, which TIGER does not read."""
    searching = {spec.name for spec in OBJECTIVES.entries() if spec.refresh is not None}
    return [(name, body) for name in OBJECTIVES for body in TINY if name not in searching or body != "tiger"]


@pytest.mark.parametrize(("objective", "backbone"), runs_of_every_objective())
def test_every_objective_trains_on_every_backbone(world, bases, tmp_path, backbone, objective):
    settings = ("distill.warm_up=2", "train.micro=8")  # one micro-batch an update: what is logged is what was capped
    made = run(*world, tmp_path / "run", *settings, backbone=backbone, objective=objective, init=bases[backbone])
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert [record["update"] for record in records] == list(range(1, 21))
    assert all(np.isfinite(record["loss"]) for record in records)
    distilled = OBJECTIVES[objective].teacher is not None
    assert ("kl" in records[0]) == distilled
    if distilled:
        cap = 0.01 if objective == "nontarget-output" else 0.05
        assert records[-1]["weight"] > 0
        assert all(record["weight"] * record["kl"] <= cap * record["sid_loss"] * 1.0001 for record in records)
    assert not same_weights(made.folder, bases[backbone] / "model")
    assert made.folder.parent == tmp_path / "run"
    assert not (tmp_path / "run" / "checkpoint").exists()
    names = {name.lower() for name in weights(made.folder)}
    assert not any("distiller" in name or "horizon" in name for name in names)


def test_a_tiny_set_is_memorised(world, tmp_path):
    index, data = world
    lines = [json.loads(line) for line in (data / "judgments.jsonl").read_text("utf-8").splitlines()]
    one_each = {line["query"]: line for line in lines if line["grade"] == 1}
    small = tmp_path / "small"
    small.mkdir()
    (small / "judgments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in one_each.values()), "utf-8")
    (small / "items.jsonl").write_text((data / "items.jsonl").read_text("utf-8"), "utf-8")
    made = run(index, small, tmp_path / "run", "train.lr=0.01", "compact.dropout=0.0", updates=250)
    backbone, _ = open_model(made.folder)
    held = SidIndex.load(index)
    wanted = {query: line["item"] for query, line in one_each.items() if line["split"] == "train"}
    found = plain_beam(backbone, held, list(wanted), width=5, k=1)
    ids = held.table.ids.to_pylist()
    assert [ids[rows[0]] for rows in found] == list(wanted.values())


def test_heads_that_are_allocated_change_nothing(world, tmp_path):
    plain = run(*world, tmp_path / "plain")
    idle = run(*world, tmp_path / "idle", "train.idle_heads=true")
    assert same_weights(plain.folder, idle.folder)


@pytest.mark.parametrize("backbone", list(TINY))
@pytest.mark.parametrize("objective", ["restd", "full-output-kd", "shuffled"])
def test_an_objective_of_no_weight_is_base_bit_by_bit(world, tmp_path, backbone, objective):
    """Same first weights, same batches, same dropout: a teacher and heads consume none of the model's randomness."""
    free = "train.clip=1e9"  # the norm of more parameters is summed in another order
    base = run(*world, tmp_path / "base", free, backbone=backbone)
    silent = run(*world, tmp_path / "silent", free, "distill.weight=0.0", backbone=backbone, objective=objective)
    spoken = run(*world, tmp_path / "spoken", free, backbone=backbone, objective=objective)
    assert same_weights(base.folder, silent.folder)
    assert not same_weights(base.folder, spoken.folder)


def test_batches_are_the_same_for_every_objective(world, bases, tmp_path, monkeypatch):
    seen = []
    original = Loop.micro_batch

    def watched(self, rows, update, number, *, last):
        seen[-1].append(rows.tolist())
        return original(self, rows, update, number, last=last)

    monkeypatch.setattr(Loop, "micro_batch", watched)
    for objective in ("base", "restd", "hard", "shape-swap", "nontarget-output"):
        seen.append([])
        run(*world, tmp_path / objective, objective=objective, init=bases["compact"])
    assert all(order == seen[0] for order in seen)


def test_another_seed_is_another_run(world, tmp_path):
    assert not same_weights(run(*world, tmp_path / "a").folder, run(*world, tmp_path / "b", "train.seed=7").folder)


def test_the_rehearsal_leaves_no_trace(world, tmp_path, monkeypatch):
    rehearsed = run(*world, tmp_path / "rehearsed")
    monkeypatch.setattr(loops, "estimate_cost", lambda loop: Estimate(0.0, 0, "cpu"))
    assert same_weights(rehearsed.folder, run(*world, tmp_path / "not").folder)


def test_the_callers_randomness_is_put_back(world, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(*world, tmp_path / "run")
    assert torch.equal(before, torch.get_rng_state())


def test_category_heads_are_frozen_in_a_continuation(world, bases, tmp_path):
    made = run(*world, tmp_path / "run", backbone="calir", objective="restd", init=bases["calir"])
    before, _ = open_model(bases["calir"])
    after, _ = open_model(made.folder)
    assert isinstance(before, CalirBackbone)
    assert isinstance(after, CalirBackbone)
    pairs = zip(before.heads.parameters(), after.heads.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not torch.equal(before.body.decoder.out, after.body.decoder.out)
    assert 0.0 <= made.summary["category_recall@3"] <= 100.0


def test_categories_are_induced_where_there_are_none(tmp_path):
    data = write_world(tmp_path / "data", categories=False)
    messages = []
    made = run(
        make_index(data, tmp_path / "index"),
        data,
        tmp_path / "run",
        "calir.branching=[3, 2]",
        "compact.encoder=minilm",
        backbone="calir",
        notify=messages.append,
    )
    assert any("no categories" in sentence for sentence in messages)
    backbone, _ = open_model(made.folder)
    assert isinstance(backbone, CalirBackbone)
    assert backbone.categories.induced
    assert backbone.categories.counts == (3, 6)


def test_a_suffix_index_has_a_level_without_a_teacher(tmp_path):
    data = write_world(tmp_path / "data")
    index = make_index(data, tmp_path / "index", policy="suffix")
    assert SidIndex.load(index).sids.shape[1] == 4
    for objective in ("restd", "full-output-kd"):
        made = run(index, data, tmp_path / objective, objective=objective)
        assert made.summary["updates"] == 20


def test_the_best_validation_is_kept_and_patience_ends_the_run(world, tmp_path):
    scores = iter([1.0, 3.0, 2.0, 2.5, 9.0])
    messages = []
    made = run(
        *world,
        tmp_path / "run",
        *("train.epochs=5", "train.patience=2", "train.keep=best"),
        updates=None,
        notify=messages.append,
        validate=lambda backbone: next(scores),
    )
    per_epoch = 4  # thirty pairs in batches of eight
    assert made.summary == {"updates": 2 * per_epoch, "validation": 3.0}
    assert any("Stopped after update 16" in sentence for sentence in messages)
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert [record["validation"] for record in records if "validation" in record] == [1.0, 3.0, 2.0, 2.5]
    two_epochs = run(*world, tmp_path / "two", "train.epochs=5", updates=None, validate=lambda backbone: 0.0)
    assert not same_weights(made.folder, two_epochs.folder)


def test_a_finished_run_is_kept_and_other_settings_are_refused(world, tmp_path):
    first, messages = run(*world, tmp_path / "run"), []
    again = run(*world, tmp_path / "run", notify=messages.append)
    assert again == first
    assert messages[-1].startswith("Kept the model")
    with pytest.raises(ArtifactError, match="other settings"):
        run(*world, tmp_path / "run", "train.lr=0.001")


def test_an_item_task_adds_every_item(world, tmp_path):
    messages = []
    run(*world, tmp_path / "run", "train.indexing=title", notify=messages.append)
    assert any("30 pairs of 15 queries, 60 items" in sentence for sentence in messages)


def test_long_queries_are_counted_and_told(world, tmp_path):
    messages = []
    run(*world, tmp_path / "run", "t5.max_tokens=3", backbone="t5", notify=messages.append)
    assert "15 of 15 queries are longer than the model's limit and lost their end" in messages


def test_a_loss_that_is_no_number_names_batch_and_checkpoint(world, tmp_path, monkeypatch):
    from restd.models import CompactBackbone

    original, calls = CompactBackbone.sid_loss, []

    def spoiled(self, output, sids):
        calls.append(1)
        loss = original(self, output, sids)
        return loss * torch.nan if len(calls) > 20 else loss

    monkeypatch.setattr(CompactBackbone, "sid_loss", spoiled)
    with pytest.raises(
        TrainingError, match=r"Loss is NaN or infinite at update \d+, .*item row.*last good checkpoint is"
    ):
        run(*world, tmp_path / "run", "train.checkpoint=2")
    assert (tmp_path / "run" / "checkpoint" / "manifest.json").is_file()


def test_a_model_of_another_index_is_refused(world, bases, tmp_path):
    _, data = world
    other = make_index(data, tmp_path / "index", seed=9)
    with pytest.raises(ArtifactError, match="was trained for codebooks"):
        run(other, data, tmp_path / "run", init=bases["compact"])


def test_no_training_pairs_is_an_error(world, tmp_path):
    index, data = world
    for name, change in {"no pairs": {"split": "test"}, "no positives": {"grade": 0}}.items():
        bad = tmp_path / name
        bad.mkdir()
        lines = [json.loads(line) for line in (data / "judgments.jsonl").read_text("utf-8").splitlines()]
        text = "".join(json.dumps({**line, **change}) + "\n" for line in lines)
        (bad / "judgments.jsonl").write_text(text, "utf-8")
        with pytest.raises(DataError, match="has no training pairs"):
            run(index, bad, tmp_path / "run")


def test_unknown_objectives_and_foreign_folders_are_refused(world, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown objective 'magic'\. Known: base, rbd"):
        run(*world, tmp_path / "run", objective="magic")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious", "utf-8")
    with pytest.raises(ArtifactError, match="thesis"):
        run(*world, tmp_path / "mine")


def test_a_job_is_what_it_was_told(world, tmp_path):
    one, other = job(*world, tmp_path / "a"), job(*world, tmp_path / "b", "train.lr=0.5")
    assert one.identity(processes=1) != other.identity(processes=1)
    assert one.identity(processes=1) != one.identity(processes=2)


@pytest.mark.parametrize("setting", ["level_weights=0.8", "soft_credit=0.1", "soft_credit_tau=0.5"])
def test_settings_that_came_later_are_a_part_of_a_run_only_where_they_are_used(world, tmp_path, setting):
    """Otherwise every run that was trained before them would count as one of other settings."""
    plain_run, own = job(*world, tmp_path / "a"), job(*world, tmp_path / "b", f"train.{setting}")
    name = setting.split("=")[0]
    assert name not in plain_run.settings()["train"]
    assert own.settings()["train"][name] == float(setting.split("=")[1])
    assert own.identity(processes=1) != plain_run.identity(processes=1)


def test_a_run_knows_its_item_table(world, tmp_path):
    """Titles, categories and tokenizers are made from it: a run with other items is another run."""
    index, data = world
    changed = tmp_path / "data"
    shutil.copytree(data, changed)
    before = job(index, changed, tmp_path / "run").identity(processes=1)
    assert before == job(index, data, tmp_path / "run").identity(processes=1)
    text = (changed / "items.jsonl").read_text("utf-8")
    (changed / "items.jsonl").write_text(text.replace("red steel kettle", "crimson steel kettle"), "utf-8")
    assert job(index, changed, tmp_path / "run").identity(processes=1) != before


def test_stacked_biases_and_scales_are_not_decayed(world, tmp_path):
    """Heads of all offsets are stacked: their biases have three dimensions and are biases all the same."""
    loop = make_loop(job(*world, tmp_path / "run", objective="restd"))
    decayed = {
        id(tensor) for group in loop.optimizer.param_groups if group["weight_decay"] for tensor in group["params"]
    }
    heads = loop.training_module.get_submodule("objectives.trajectory.distiller.heads")
    assert isinstance(heads, HorizonHeads)
    assert {name for name, tensor in heads.named_parameters() if id(tensor) in decayed} == {"inner", "outer"}


def test_losses_and_rankings_validate_on_the_same_queries(world, tmp_path, monkeypatch):
    index, data = world
    judged = job(index, data, tmp_path / "run", "train.judged=5", "train.select=ndcg")
    snapshot = Snapshot.load(index)
    tests = read_tests(data, snapshot, split="valid", task="search")
    pairs = read_examples(data, snapshot.ids, task="search").valid
    for count in (1, 5, 14):
        assert sorted(pairs.some(count).texts) == sorted(validation_queries(tests, count).texts)
    histories = read_examples(data, snapshot.ids, task="recommend").valid.some(7).texts
    users = validation_queries(read_tests(data, snapshot, split="valid", task="recommend"), 7)
    assert [history.items for history in histories] == [history.items for history in users.texts]
    seen = []

    def watched(ranker, tests, *args, **options):
        seen.append(sorted(tests.texts))
        return original(ranker, tests, *args, **options)

    original = validations.evaluate
    monkeypatch.setattr(validations, "evaluate", watched)
    validate = ranked_validation(judged)
    assert validate is not None
    loop = make_loop(judged)
    validate(loop.training_module.backbone)
    assert seen == [sorted(pairs.some(5).texts)]
    assert sorted(loop.valid.pairs.texts) == seen[0]
