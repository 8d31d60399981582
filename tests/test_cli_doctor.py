"""`restd doctor`: what it reports, and that only something required makes it fail."""

import json
import sys
from importlib import metadata

import pytest

from restd.cli import doctor


@pytest.fixture
def report(command):
    def report():
        code, out, err = command("doctor", "--json")
        return code, json.loads(out), err

    return report


def test_everything_a_bug_report_needs_is_there(report, command, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, values, _ = report()
    assert code == 0
    assert values["problems"] == []
    assert values["python"]["path"] == sys.executable
    versions = {package["name"]: package["installed"] for package in values["packages"]}
    assert versions["torch"] == metadata.version("torch")
    assert versions["transformers"] == metadata.version("transformers")
    assert values["threads"]["OMP_NUM_THREADS"] == "1"
    assert values["threads"]["cores"] >= 1
    assert values["devices"][-1]["name"] == "cpu"
    assert values["devices"][-1]["precision"] == "float32"
    assert {disk["use"] for disk in values["disk"]} == {"working folder", "cache of restd", "cache of models"}
    assert all(disk["free_gb"] >= 0 for disk in values["disk"])
    code, out, _ = command("doctor")
    assert code == 0
    assert "Everything that restd requires is installed." in out
    assert "trains in float32" in out


def without(monkeypatch, *names):
    version = metadata.version

    def missing(name):
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)


def test_a_missing_extra_is_no_failure_and_says_how_to_get_it(report, command, monkeypatch):
    without(monkeypatch, "bm25s")
    code, values, _ = report()
    assert code == 0
    assert [package["extra"] for package in values["packages"] if package["name"] == "bm25s"] == ["bm25"]
    _, out, _ = command("doctor")
    assert "missing; run: pip install 'restd-retrieval[bm25]'" in out


def test_a_missing_requirement_is_a_failure(report, monkeypatch):
    without(monkeypatch, "faiss-cpu")
    code, values, err = report()
    assert code == 2
    assert "faiss-cpu is missing; restd needs faiss-cpu>=" in values["problems"][0]
    assert "pip install 'faiss-cpu>=" in err


def test_a_requirement_that_is_too_old_is_a_failure(report, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1" if name == "pyarrow" else version(name))
    code, values, _ = report()
    assert code == 2
    assert "pyarrow is 0.0.1; restd needs pyarrow>=" in values["problems"][0]


def test_a_torch_that_cannot_be_imported(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, values, _ = report()
    assert code == 2
    assert "torch cannot be imported" in values["problems"][0]
    assert values["devices"] == []


def test_missing_helpers_do_not_stop_the_check(report, monkeypatch):
    for name in ("psutil", "platformdirs", "packaging.requirements"):
        monkeypatch.setitem(sys.modules, name, None)
    code, values, _ = report()
    assert code == 2
    assert "packaging is missing" in values["problems"][0]
    assert values["memory"] is None
