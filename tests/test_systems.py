"""Systems by name: made of known parts and valid settings; budgets change what they cost, not what they are."""

import re
from dataclasses import replace

import pytest

from restd.errors import ConfigError
from restd.quantize import QUANTIZERS
from restd.rankers import RANKERS
from restd.systems import SYSTEMS, Budget, SystemSpec, budget_names, read_budget, resolve_system
from restd.train import OBJECTIVES

NAMES = (
    *(
        "bm25",
        "dense",
        "dpr",
        "laser",
        "dsi-naive",
        "dsi-semantic",
        "tiger",
        "hi-gen",
        "ltrgr",
        "ripor",
        "cat-id2",
        "merge",
        "forge",
    ),
    *("hgrec", "calir"),
)
"""The paper's, in the order of its table."""


@pytest.mark.parametrize("budget", budget_names())
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_every_system_has_valid_settings_under_every_budget(name, budget):
    spec, shared = SYSTEMS[name], read_budget(budget)
    resolved = resolve_system(spec, shared)
    assert spec.summary.endswith(".")
    assert spec.source or spec.ours
    if not spec.generates:
        assert spec.ranker in RANKERS
        assert resolved.index is None
        return
    assert resolved.index.quantizer == spec.index["index"]["quantizer"] if "quantizer" in spec.index["index"] else True
    assert QUANTIZERS[resolved.index.quantizer].needs <= spec.needs
    assert resolved.config.objective == spec.objective
    assert resolved.config.objective in OBJECTIVES
    for setting, value in shared.train_options.items():
        assert getattr(resolved.config.train, setting) == (tuple(value) if isinstance(value, list) else value)


def test_the_papers_systems_are_there():
    assert set(NAMES) <= set(SYSTEMS)
    assert [name for name in SYSTEMS if SYSTEMS[name].ours] == ["product"]


def test_alignment_is_for_those_that_say_so():
    budget = read_budget("small")
    modes = {name: resolve_system(SYSTEMS[name], budget).index for name in SYSTEMS}
    aligned = {name for name, index in modes.items() if index is not None and index.align.enabled != "off"}
    assert aligned == {"ripor", "ripor-index", "product"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tiger", ""),
        ("calir", ""),
        ("hgrec", ""),
        ("ripor-index", ""),
        ("bm25", "it does not generate"),
        ("hi-gen", "its identifiers (hi-gen) have no residuals"),
        ("ltrgr", "it has an objective of its own (ltrgr)"),
        ("product", "it has an objective of its own (restd-output)"),
    ],
)
def test_restd_is_laid_over_residuals_and_the_plain_loss(name, why):
    resolved = resolve_system(SYSTEMS[name], read_budget("small"))
    assert (resolved.refusal, resolved.takes_restd) == (why, not why)


def test_a_budget_wins_over_a_system_but_its_common_part_does_not():
    spec = SYSTEMS["tiger"]
    budget = Budget("mine", "", {"quantizer": {"levels": 5, "codes": 32}, "train": {"updates": 7}, "rqvae": {"dim": 8}})
    resolved = resolve_system(spec, budget)
    assert (resolved.index.fit.levels, resolved.index.fit.codes, resolved.index.fit.dim) == (3, 32, 8)
    assert (resolved.config.train.updates, resolved.config.train.epochs) == (7, 0)
    explicit = resolve_system(spec, budget.with_settings(["rqvae.levels=2"]))
    assert explicit.index.fit.levels == 2


def test_another_length_replaces_the_budgets():
    budget = read_budget("tiny").with_lengths(epochs=2)
    train = resolve_system(SYSTEMS["product"], budget).config.train
    assert (train.epochs, train.updates) == (2, 0)
    assert read_budget("tiny").with_lengths() == read_budget("tiny")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"objective": "restd"}}, "Unknown section [model] of the budget mine. Known: quantizer, index"),
        ({"index": {"policy": "none"}}, "[index] policy of the budget mine would change what a system is"),
        ({"align": {"enabled": "on"}}, "[align] enabled of the budget mine would change what a system is"),
        ({"quantizer": {"size": 3}}, "No quantiser has the setting 'size'"),
    ],
)
def test_what_a_budget_may_not_say(sections, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Budget("mine", "", sections)


def test_a_budget_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[budget]\nsummary = "Mine."\n\n[train]\nupdates = 5\n', encoding="utf-8")
    budget = read_budget(str(path))
    assert (budget.name, budget.summary, budget.train_options) == ("mine", "Mine.", {"updates": 5})
    path.write_text("[budget]\nhours = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="may only have a summary"):
        read_budget(str(path))
    path.write_text("[train\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_budget(str(path))
    with pytest.raises(ConfigError, match=r"neither a \.toml file nor one of: small, tiny"):
        read_budget("huge")


def test_a_setting_that_does_not_exist_names_the_system():
    spec = replace(SYSTEMS["tiger"], name="mine", train={"compact": {"wide": 3}})
    with pytest.raises(ConfigError, match=r"The system mine cannot be made with the budget tiny: \[compact\] has no"):
        resolve_system(spec, read_budget("tiny"))


def test_a_system_is_an_index_or_a_ranker():
    for parts in ({}, {"ranker": "bm25", "index": {"index": {"quantizer": "kmeans"}}}):
        with pytest.raises(ConfigError, match="either settings of an index, or a ranker"):
            SystemSpec("both", "Both.", source="", label="Both", **parts)


def test_an_unknown_system_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"Unknown system 'tigr'\. Did you mean 'tiger'"):
        SYSTEMS["tigr"]
