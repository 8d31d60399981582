"""The front door: three lines in a training loop, and nothing of it left at inference."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from safetensors.torch import load, save

from restd.data import Catalog
from restd.distill import (
    AuxiliaryConfig,
    DistillConfig,
    Geometry,
    HorizonHeads,
    MeanTeacher,
    OutputDistiller,
    ResidualDistiller,
    ResidualTeacher,
    TemperatureConfig,
    strip,
)
from restd.distill.equations import full_output_kl, nontarget_output_kl
from restd.errors import ArtifactError, ConfigError
from restd.index import IndexConfig, build_index, import_index, with_shape
from tests.test_distill_equations import made

WIDTH = 24
FULL = AuxiliaryConfig(weight=1.0, warm_up=0, cap=None)


def distiller(seed=0, *, sizes=(6, 4, 5), **settings):
    config = DistillConfig(**{"horizon": 3, "temperature": TemperatureConfig("fixed", 1.0), **settings})
    geometry = made(seed, sizes=sizes)
    return ResidualDistiller.of_tensors(
        geometry.codebooks, geometry.latents, geometry.sids, sizes=geometry.sizes, width=WIDTH, config=config
    )


def states(rows=5, levels=3, seed=0):
    return torch.randn(rows, levels, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_loss_is_weighted_logged_and_trains_the_heads():
    module = distiller(auxiliary=FULL)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = module(states(), torch.arange(5), sid_loss=torch.tensor(3.0), step=step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    log = module.last
    assert log is not None
    assert log.loss.item() == pytest.approx(losses[-1])
    assert not log.loss.requires_grad
    assert not log.capped
    assert log.by_cell.shape == (3, 3)
    assert log.by_cell.isnan().sum() == 3


def test_warm_up_and_cap_are_applied():
    module = distiller(auxiliary=AuxiliaryConfig(weight=0.1, warm_up=100, cap=0.05))
    assert module(states(), torch.arange(5), sid_loss=torch.tensor(3.0), step=0).item() == 0.0
    generous = module(states(), torch.arange(5), sid_loss=torch.tensor(1e6), step=50)
    assert not module.last.capped
    assert generous.item() == pytest.approx(0.05 * module.last.divergence.item())
    tight = module(states(), torch.arange(5), sid_loss=torch.tensor(1e-3), step=50)
    assert module.last.capped
    assert tight.item() == pytest.approx(0.05e-3, rel=1e-4)


def test_the_papers_sum_weighs_a_fifth_of_the_mean():
    mean, total = (
        distiller(auxiliary=AuxiliaryConfig(warm_up=0, cap=cap, positions=n)) for cap, n in ((9.0, 1), (9.0, 5))
    )
    first, second = (module(states(), torch.arange(5), sid_loss=torch.tensor(1e6), step=1) for module in (mean, total))
    assert first.item() == pytest.approx(5 * second.item(), rel=1e-5)
    with pytest.raises(ConfigError, match="positions must be at least 1, got 0"):
        AuxiliaryConfig(positions=0)


def test_gradients_reach_the_states_and_stop_at_the_teacher():
    module = distiller(auxiliary=FULL)
    inputs = states().requires_grad_()
    sid_loss = torch.tensor(2.0, requires_grad=True)
    module(inputs, torch.arange(5), sid_loss=sid_loss, step=1).backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().sum() > 0
    assert sid_loss.grad is None
    assert not module.teacher.geometry.codebooks.values.requires_grad


def test_horizon_chooses_the_heads_that_learn_and_all_are_there():
    one, three = distiller(horizon=1, auxiliary=FULL), distiller(horizon=3, auxiliary=FULL)
    assert [p.shape for p in one.parameters()] == [p.shape for p in three.parameters()]
    one(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1).backward()
    assert one.heads.outer.grad[0].abs().sum() > 0
    assert one.heads.outer.grad[1:].abs().sum() == 0


def test_masked_levels_do_not_count():
    module = distiller(auxiliary=FULL)
    mask = torch.ones(5, 3, dtype=torch.bool)
    mask[:, 2] = False

    def losses():
        every = torch.ones_like(mask)
        return [
            module(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1, mask=part).item()
            for part in (mask, every)
        ]

    masked, whole = losses()
    module(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1, mask=mask)
    assert module.last.by_cell[2, 0].isnan()
    sids = module.teacher.geometry.sids  # the third code decides about the third level's target and no other
    sids[:, 2] = (sids[:, 2] + 1) % 5
    assert losses()[0] == masked
    assert losses()[1] != pytest.approx(whole, rel=1e-3)
    nothing = module(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1, mask=torch.zeros_like(mask))
    assert nothing.item() == 0.0


def test_a_disambiguation_code_has_no_teacher():
    geometry = made(0)
    longer = torch.cat([geometry.sids, torch.arange(12, dtype=torch.int16)[:, None]], dim=1)
    module = ResidualDistiller.of_tensors(
        geometry.codebooks, geometry.latents, longer, sizes=geometry.sizes, width=WIDTH, config=DistillConfig(horizon=3)
    )
    plain = distiller(temperature=TemperatureConfig())
    for one in (module, plain):
        one(states(), torch.arange(5), sid_loss=torch.tensor(9.0), step=500)
    assert torch.equal(module.last.divergence, plain.last.divergence)


def test_from_an_index(items_csv, tmp_path):
    config = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=8, dim=8)
    index = build_index(Catalog(items_csv), tmp_path / "out", config)
    module = ResidualDistiller.of_index(index, width=WIDTH, config=DistillConfig(horizon=3))
    assert torch.isfinite(module(states(), torch.tensor([0, 9, 99, 199, 299]), sid_loss=torch.tensor(1.0), step=500))
    assert float(module.temperatures[0]) > float(module.temperatures[2]), "k-means: one temperature a level"
    residuals = module.teacher.geometry.residuals(torch.arange(3)).numpy()
    assert abs(residuals - index.trajectory([0, 1, 2])[:, :-1]).max() < 1e-5
    assert module.teacher.geometry.latents.element_size() * 8 == 16 * 1
    bare = import_index(_codes_of(index, tmp_path))
    with pytest.raises(ConfigError, match="imported without latents or codebooks"):
        ResidualDistiller.of_index(bare, width=WIDTH)


def _codes_of(index, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": index.table.ids, "sid": index.sids.tolist()}), tmp_path / "codes.parquet")
    return tmp_path / "codes.parquet"


def test_mean_teacher_behind_the_same_door():
    geometry = made(0)
    taus = torch.ones(3)
    rows, queries = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
    teacher = MeanTeacher.of(ResidualTeacher(geometry, taus), queries, rows)
    module = ResidualDistiller(teacher, taus, width=WIDTH, config=DistillConfig(horizon=3, auxiliary=FULL))
    assert torch.isfinite(module(states(4), rows, sid_loss=torch.tensor(1.0), step=1, queries=queries))


@pytest.mark.parametrize(("kind", "weight", "cap"), [("full", 0.1, 0.05), ("nontarget", 0.02, 0.01)])
def test_output_controls_have_the_papers_coefficients(kind, weight, cap):
    teacher = ResidualTeacher(made(0), torch.ones(3))
    module = OutputDistiller(teacher, kind=kind)
    assert (module.config.weight, module.config.cap) == (weight, cap)
    logits = torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = module(logits, torch.arange(5), sid_loss=torch.tensor(100.0), step=120)
    assert loss.item() == pytest.approx(weight * module.last.divergence.item(), rel=1e-5)
    geometry, everywhere = teacher.geometry, torch.ones(5, 3, dtype=torch.bool)
    current = teacher.targets(torch.arange(5)).values
    by_hand = {
        "full": full_output_kl(logits, current, everywhere, geometry.codebooks.mask),
        "nontarget": nontarget_output_kl(
            logits, current, geometry.stored(torch.arange(5)), everywhere, geometry.codebooks.mask
        ),
    }
    assert by_hand["full"].item() != pytest.approx(by_hand["nontarget"].item(), rel=1e-3)
    assert module.last.divergence.item() == pytest.approx(by_hand[kind].item(), rel=1e-5)
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[:, 1, 4:] == 0).all(), "padding codes got a gradient"
    with pytest.raises(ConfigError, match="Expected logits of shape"):
        module(logits[:, :2], torch.arange(5), sid_loss=torch.tensor(1.0), step=1)


# -- state, autocast, compile, processes -------------------------------------------------------------------------------


def test_state_comes_back_and_other_codebooks_are_refused():
    first, second, other = distiller(0), distiller(0), distiller(1)
    with torch.no_grad():
        first.heads.outer.add_(1.0)
    stored = load(save(first.state_dict()))  # tensors only: safetensors can hold them
    second.load_state_dict(stored)
    assert torch.equal(second.heads.outer, first.heads.outer)
    with pytest.raises(ArtifactError, match="trained with codebooks"):
        other.load_state_dict(stored)
    warmer = distiller(0, temperature=TemperatureConfig("fixed", 2.0))
    with pytest.raises(ArtifactError, match="trained at temperatures"):
        warmer.load_state_dict(stored)
    assert not [name for name in stored if "latents" in name or "sids" in name], "the index is not part of the state"


def test_autocast_keeps_the_loss_in_float32():
    module = distiller(auxiliary=FULL)
    plain = module(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1)
    with torch.autocast("cpu", dtype=torch.float16):
        inside = module(states(), torch.arange(5), sid_loss=torch.tensor(1.0), step=1)
    assert inside.dtype == torch.float32
    assert inside.item() == pytest.approx(plain.item(), rel=0.05)


COMPILED = """
import torch
from restd.distill import AuxiliaryConfig, DistillConfig, ResidualDistiller
torch.manual_seed(0)
config = DistillConfig(horizon=3, auxiliary=AuxiliaryConfig(warm_up=0))
books, latents, sids = torch.randn(3, 8, 4), torch.randn(20, 4), torch.randint(8, (20, 3))
module = ResidualDistiller.of_tensors(books, latents, sids, width=16, config=config)
states, rows, sid_loss = torch.randn(5, 3, 16), torch.arange(5), torch.tensor(1.0)
plain = module(states, rows, sid_loss=sid_loss, step=1)
module.config = DistillConfig(horizon=3)
fast = torch.compile(module, backend="aot_eager", fullgraph=True)
for step in range(40):  # λ changes at every step of the warm-up, and the code must not
    compiled = fast(states, rows, sid_loss=sid_loss, step=step)
    assert torch.allclose(module(states, rows, sid_loss=sid_loss, step=step), compiled)
compiled.backward()
assert module.heads.outer.grad.abs().sum() > 0
"""


def test_compiles_without_a_break():
    """In a process of its own: the type checker that tests switch on cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _work(rank, port, results):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = torch.nn.parallel.DistributedDataParallel(distiller(auxiliary=FULL))
    half = slice(rank * 2, rank * 2 + 2)
    loss = module(states(4)[half], torch.arange(4)[half], sid_loss=torch.tensor(1.0), step=1)
    loss.backward()
    results[rank] = module.module.heads.outer.grad.clone()
    torch.distributed.destroy_process_group()


def test_two_processes_share_their_gradients():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(_work, args=(port, results), nprocs=2)
        gathered = [results[0], results[1]]
    module = distiller(auxiliary=FULL)
    module(states(4), torch.arange(4), sid_loss=torch.tensor(1.0), step=1).backward()
    assert torch.allclose(gathered[0], gathered[1])
    assert torch.allclose(gathered[0], module.heads.outer.grad, atol=1e-5)


def test_strip_leaves_nothing():
    model = torch.nn.Module()
    model.body = torch.nn.Linear(3, 3)
    model.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), HorizonHeads(4, 2, horizon=2))
    model.distiller = distiller()
    before = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("body")}
    removed = strip(model)
    assert removed == sum(p.numel() for p in distiller().parameters()) + 2 * (16 + 8 + 12 + 2)
    assert {name for name, _ in model.named_parameters()} == {
        "body.weight",
        "body.bias",
        "inner.0.weight",
        "inner.0.bias",
    }
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert strip(model) == 0
    with pytest.raises(ConfigError, match="model itself is a distiller"):
        strip(distiller())


# -- mistakes ----------------------------------------------------------------------------------------------------------


def call(module, **changes):
    given = {"states": states(), "rows": torch.arange(5), **changes}
    return module(given["states"], given["rows"], sid_loss=torch.tensor(1.0), step=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": states()[..., :-1]}, r"Expected states of shape \(5, 3, 24\)"),
        ({"states": states(levels=4)}, r"Expected states of shape \(5, 3, 24\)"),
        ({"rows": torch.tensor([0, 1, 2, 3, 12])}, "between 0 and 11"),
        ({"rows": torch.tensor([0, 1, 2, 3, 13])}, "between 0 and 11"),
        ({"rows": torch.tensor([-1, 1, 2, 3, 4])}, "got rows from -1"),
        ({"states": states() * torch.nan}, "NaN or infinite"),
    ],
)
def test_bad_batches(changes, message):
    with pytest.raises(ConfigError, match=message):
        call(distiller(), **changes)


@pytest.mark.parametrize("rows", [[0, 0, 0, 0, 0], [7, 8, 9, 10, 11]])
def test_the_first_and_the_last_item_are_taken(rows):
    assert torch.isfinite(call(distiller(), rows=torch.tensor(rows)))


def test_checks_can_be_left_out():
    """They wait for an accelerator. Then -1 is the last row, as in any tensor."""
    rows = torch.tensor([-1, 1, 2, 3, 4])
    assert torch.isfinite(call(distiller(check=False), rows=rows))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"discount": 0.0}, "discount must be above 0 and at most 1, got 0.0"),
        ({"discount": 1.5}, "discount must be above 0 and at most 1, got 1.5"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        distiller(**settings)


def test_bad_weights_and_tensors():
    with pytest.raises(ConfigError, match="cap must be above 0, or None"):
        AuxiliaryConfig(cap=0.0)
    with pytest.raises(ConfigError, match="of at least 1; got 0, 4 and 1"):
        HorizonHeads(0, 4, horizon=1)
    geometry = made(0)
    with pytest.raises(ConfigError, match=r"need latents \[item, 3\].*got \(12, 2\)"):
        Geometry.of(geometry.codebooks, geometry.latents[:, :2], geometry.sids)
    with pytest.raises(ConfigError, match=r"need latents \[item, 3\].*got \(12, 4\)"):
        Geometry.of(geometry.codebooks, torch.cat([geometry.latents, geometry.latents[:, :1]], dim=1), geometry.sids)
    with pytest.raises(ConfigError, match="SIDs and codebooks of the same index"):
        Geometry.of(geometry.codebooks.values[:, :3], geometry.latents, geometry.sids)
    for values in (geometry.codebooks.values[0], geometry.codebooks.values[None]):
        with pytest.raises(ConfigError, match=r"Expected codebooks \[level, code, dim\]"):
            Geometry.of(values, geometry.latents, geometry.sids)
    with pytest.raises(ConfigError, match="must be finite"):
        Geometry.of(geometry.codebooks.values * torch.nan, geometry.latents, geometry.sids, sizes=geometry.sizes)


def test_latents_beyond_float16_and_wrong_sizes_are_refused():
    geometry = made(0)
    books, sids = geometry.codebooks.values, geometry.sids
    latents = geometry.latents.float()
    latents[3, 1] = 1e5  # finite here, infinite once halved
    with pytest.raises(ConfigError, match="must fit float16"):
        Geometry.of(books, latents, sids, sizes=geometry.sizes)
    for sizes in ((6, 4), (6, 4, 7), (6, 4, 0)):
        with pytest.raises(ConfigError, match="Expected 3 codebook sizes between 1 and 6"):
            Geometry.of(books, geometry.latents, sids, sizes=sizes)
    with pytest.raises(ConfigError, match="Leave sizes out"):
        Geometry.of(geometry.codebooks, geometry.latents, sids, sizes=(6, 6, 6))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_short_sids_have_all_their_levels_supervised_at_the_default_horizon(levels):
    geometry = made(0, sizes=(6, 4, 5)[:levels])
    by_default, in_full = (
        ResidualDistiller.of_tensors(geometry.codebooks, geometry.latents, geometry.sids, width=WIDTH, config=config)
        for config in (DistillConfig(), DistillConfig(horizon=levels))
    )
    assert by_default.heads.horizon == levels
    loss, expected = (
        module(states(levels=levels), torch.arange(5), sid_loss=torch.tensor(9.0), step=200)
        for module in (by_default, in_full)
    )
    assert torch.equal(loss, expected)
    assert by_default.last.by_cell.shape == (levels, levels)


def test_new_heads_are_drawn_from_their_seed_with_a_small_spread():
    heads = HorizonHeads(64, 8, horizon=2)
    for weights in (heads.inner.detach(), heads.outer.detach()):
        assert abs(float(weights.std()) - 0.02) < 0.002
        assert abs(float(weights.mean())) < 0.002
    assert torch.equal(heads.inner, HorizonHeads(64, 8, horizon=2, seed=0).inner)
    assert not torch.equal(heads.inner, HorizonHeads(64, 8, horizon=2, seed=1).inner)
