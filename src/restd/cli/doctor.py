"""`restd doctor`: whether this environment can run everything, and how to get what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from restd._version import __version__
from restd.cli.console import fail, show, show_json, show_table
from restd.cli.device import available_devices
from restd.cli.options import Json

DISTRIBUTION = "restd-retrieval"
_OLDEST = (3, 11)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM")
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Package:
    """A package that restd needs, or that one of its extras brings."""

    name: str
    required: str
    installed: str | None
    extra: str | None
    usable: bool

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"pip install '{DISTRIBUTION}[{self.extra}]'" if self.extra else f"pip install '{self.required}'"


def doctor(as_json: Json = False) -> None:
    """Check this environment: versions, threads, devices, extras, free disk space; and how to get what is missing.

    Ends with code 0 unless something that restd requires is missing.
    """
    packages = list(_packages())
    problems = [
        f"{package.name} is {package.installed or 'missing'}; restd needs {package.required}. Run: {package.remedy}"
        for package in packages
        if package.extra is None and not package.usable
    ]
    if sys.version_info < _OLDEST:
        problems.append(f"Python is {platform.python_version()}; restd needs 3.11 or newer.")
    devices, threads, torch_problems = _torch()
    problems += torch_problems
    report = {
        "restd": __version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "platform": platform.platform(),
        "packages": [asdict(package) for package in packages],
        "threads": {"cores": _cores(), "torch": threads, **{name: os.environ.get(name) for name in _THREADS}},
        "devices": devices,
        "memory": _memory(),
        "disk": _disk(),
        "problems": problems,
    }
    show_json(report) if as_json else _show(report, packages)
    if problems:
        for problem in problems:
            fail(problem)
        raise typer.Exit(2)


def _packages() -> Iterator[Package]:
    """What the installed distribution declares, and what is there."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # without it, requirements cannot even be read
        yield Package("packaging", "packaging", None, None, False)
        return
    try:
        declared = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:  # a source tree that was never installed declares nothing
        return
    for requirement in declared:
        extra = str(requirement.marker).partition("extra == ")[2].strip("\"'") or None if requirement.marker else None
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed = None
        usable = installed is not None and requirement.specifier.contains(installed, prereleases=True)
        yield Package(requirement.name, f"{requirement.name}{requirement.specifier}", installed, extra, usable)


def _cores() -> int | None:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count()


def _torch() -> tuple[list[dict[str, str]], int | None, list[str]]:
    """Devices with the precision that training uses there, threads, and problems.

    Nothing is computed: bfloat16 in particular is never tried on a CPU, where some die of an illegal instruction.
    Training there is float32.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        return [], None, [f"torch cannot be imported: {error}. Run: pip install --force-reinstall torch"]
    devices = []
    for name in available_devices():
        if name.startswith("cuda"):
            model = torch.cuda.get_device_name(name)
            precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
        else:
            model, precision = platform.processor() or platform.machine(), "float32"
        devices.append({"name": name, "model": model, "precision": precision})
    return devices, torch.get_num_threads(), []


def _memory() -> dict[str, float] | None:
    try:
        import psutil
    except ImportError:
        return None
    memory = psutil.virtual_memory()
    return {"total_gb": round(memory.total / _GB, 1), "available_gb": round(memory.available / _GB, 1)}


def _disk() -> list[dict[str, Any]]:
    folders = {"working folder": Path.cwd()}
    with suppress(ImportError):  # reported as a missing package already
        from platformdirs import user_cache_path

        folders["cache of restd"] = user_cache_path("restd", appauthor=False, opinion=False)
    with suppress(ImportError):
        from huggingface_hub.constants import HF_HUB_CACHE

        folders["cache of models"] = Path(HF_HUB_CACHE)
    return [
        {"use": use, "folder": str(folder), "free_gb": round(shutil.disk_usage(_existing(folder)).free / _GB, 1)}
        for use, folder in folders.items()
    ]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest of its parents that exists: the disk it will be made on."""
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _show(report: dict[str, Any], packages: list[Package]) -> None:
    show(f"restd {report['restd']}, Python {report['python']['version']} ({report['python']['path']})")
    show(report["platform"])
    required = [package for package in packages if package.extra is None]
    rows = [(package.name, package.installed or "missing", package.required) for package in required]
    show_table("Required packages", ("package", "installed", "required"), rows, numbers=False)
    extras: dict[str, list[Package]] = {}
    for package in packages:
        if package.extra is not None:
            extras.setdefault(package.extra, []).append(package)
    rows = [
        (
            extra,
            ", ".join(f"{package.name} {package.installed or '(missing)'}" for package in members),
            "installed" if all(package.usable for package in members) else f"missing; run: {members[0].remedy}",
        )
        for extra, members in extras.items()
    ]
    show_table("Extras", ("extra", "packages", "status"), rows, numbers=False)
    if not packages:
        show(f"{DISTRIBUTION} is not installed, so its requirements are unknown here. Run: pip install -e . in a clone")
    threads = report["threads"]
    settings = [f"{name}={threads[name]}" for name in _THREADS if threads[name] is not None]
    show(f"Cores: {threads['cores']}; threads of torch: {threads['torch']}; set: {', '.join(settings) or 'nothing'}")
    for device in report["devices"]:
        show(f"Device {device['name']}: {device['model']}, trains in {device['precision']}")
    if report["memory"] is not None:
        show(f"Memory: {report['memory']['available_gb']} of {report['memory']['total_gb']} GB available")
    for disk in report["disk"]:
        show(f"Disk: {disk['free_gb']} GB free for the {disk['use']} ({disk['folder']})")
    if not report["problems"]:
        show("Everything that restd requires is installed.")
