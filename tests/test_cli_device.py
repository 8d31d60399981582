"""`--device`: checked first, passed on to whatever runs a model."""

import os

import pytest
import torch
from accelerate import Accelerator

from restd.cli.device import available_devices, use_device
from restd.errors import ConfigError

COMMANDS = {
    "index build": ("--catalog", "items.csv", "--out", "index"),
    "index inspect": ("index", "--data", "data"),
    "index add": ("--index", "index", "--catalog", "items.csv"),
    "train": ("--index", "index", "--data", "data", "--out", "run"),
    "compare": ("--index", "index", "--data", "data", "--out", "study"),
    "fit": ("--model", "run", "--data", "data"),
    "quickstart": ("items.csv",),
    "search": ("--model", "run", "desk"),
    "recommend": ("--model", "run", "--history", "desk"),
    "evaluate": ("--model", "run"),
    "analyze": ("probes", "study"),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What `--device cpu` sets is given back."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two CUDA devices, as far as questions go; returns those that were made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    return current


@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_that_is_not_there_is_refused_before_anything_else(command, name):
    code, _, err = command(*name.split(), *COMMANDS[name], "--device", "tpu")
    assert code == 2
    assert "--device tpu is not available here. Available: " in err
    assert "cpu" in err


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match=f"--device {name} is not available"):
            use_device(name)


def test_devices_that_are_there(two_gpus):
    assert available_devices()[:2] == ["cuda:0", "cuda:1"]
    assert use_device("cuda") == "cuda"
    assert two_gpus == []
    assert use_device("cuda:1") == "cuda:1"
    assert two_gpus == ["cuda:1"]
    with pytest.raises(ConfigError, match=r"Available: cuda:0, cuda:1"):
        use_device("cuda:2")


def test_the_cpu_hides_other_devices():
    assert use_device("cpu") == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert use_device(None) is None


@pytest.mark.parametrize(("device", "on_cpu", "precision"), [(None, False, "bf16"), ("cpu", True, "no"),
                                                            ("cuda:1", False, "bf16")])  # fmt: skip
def test_training_runs_where_it_should_and_in_a_precision_of_that_device(
    two_gpus, monkeypatch, tmp_path, device, on_cpu, precision
):
    from restd.train import Job
    from restd.train import run as module

    passed, accelerator = {}, object.__new__(Accelerator)
    monkeypatch.setattr(module, "Accelerator", lambda **options: passed.update(options) or accelerator)
    module._accelerator(Job(tmp_path, tmp_path, tmp_path, device=device))
    assert (passed["cpu"], passed["mixed_precision"]) == (on_cpu, precision)
    assert two_gpus == (["cuda:1"] if device == "cuda:1" else [])


def test_the_device_is_no_part_of_a_study(tmp_path):
    from restd.experiments import Comparison
    from restd.experiments.study_file import load_study, save_study

    comparison = Comparison(tmp_path / "index", tmp_path / "data", tmp_path, device="cuda:1")
    assert comparison.job("base", 42).device == "cuda:1"
    save_study(comparison)
    assert load_study(tmp_path).device is None


@pytest.mark.parametrize("name", ["search", "recommend"])
def test_models_are_loaded_to_the_device(command, monkeypatch, name):
    from restd.search import Retriever

    devices = []

    def load(*arguments, device, **options):
        devices.append(device)
        raise ConfigError("stop here")

    monkeypatch.setattr(Retriever, "load", load)
    for device in ((), ("--device", "cpu")):
        code, _, err = command(name, *COMMANDS[name], *device)
        assert code == 2
        assert "stop here" in err
    assert devices == [None, "cpu"]
