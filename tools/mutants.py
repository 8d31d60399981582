"""Mutation check: change one operator, number or condition at a time, and see whether a test fails.

    make mutants
    python tools/mutants.py --module src/restd/evaluate/metrics.py

cosmic-ray finds and applies the mutants. They are applied in temporary copies of the tree, one per worker, never in
the checkout itself. A mutant that no test notices is a survivor: add a test that kills it, or explain in
`tools/survivors.toml` why it cannot be killed. The command ends with an error where a survivor has no explanation.

Starting pytest costs more than most of these tests. So each worker imports everything that a mutant cannot change
(other packages, and modules of ours that do not import the mutated one) once, and forks a process for every mutant.
"""

import argparse
import ast
import difflib
import hashlib
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "tools" / "survivors.toml"
DISTILL = ("test_distill_equations", "test_distill_output", "test_distiller", "test_distill_temperature")
DISTILL += ("test_distill_extensions", "test_distill_controls", "test_distill_limits")
CODES = ("test_codes", "test_keys", "test_trie")
TESTS = {
    "src/restd/distill": DISTILL,
    "src/restd/distill/controls.py": ("test_distill_controls", "test_distill_extensions"),
    "src/restd/distill/extensions.py": ("test_distill_extensions",),
    "src/restd/distill/matching.py": ("test_distill_controls",),
    "src/restd/distill/temperature.py": ("test_distill_temperature", "test_distill_limits", "test_distiller"),
    "src/restd/codes": CODES,
    "src/restd/codes/trie.py": ("test_trie", "test_codes"),
    "src/restd/search/beam.py": ("test_search_beam",),
    "src/restd/evaluate/metrics.py": ("test_metrics",),
    "src/restd/evaluate/statistics.py": ("test_statistics",),
}
"""Test files of each module, or of all modules of a folder; the first to fail ends the run of a mutant."""
LEFT_OUT = "not processes and not large and not compiles and not loads and not loaded"
"""Tests whose names say so are left out: they start processes or take long."""
PRELOADED = ("torch", "numpy", "scipy.stats", "sklearn.decomposition", "faiss", "transformers", "pyarrow.parquet")
PRELOADED += ("sentence_transformers", "safetensors.torch", "accelerate", "pydantic", "rich.progress", "jaxtyping")
PRELOADED += ("beartype", "hypothesis", "pytest")
PYTEST = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "-k", LEFT_OUT)
PYTEST += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # preloaded plugins
KILLED, SURVIVED, TIMEOUT, NOT_RUN = "killed", "survived", "timeout", "not run"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module."""

    module: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    verdict: str
    removed: str = ""
    added: str = ""
    """The changed lines, before and after."""


def modules() -> list[str]:
    """Modules to mutate, relative to the tree."""
    paths = [path for name in TESTS for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).glob("*.py"))]
    return sorted({path.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py"})


def tests_of(module: str) -> list[str]:
    """Test files of a module."""
    names = TESTS.get(module) or TESTS[Path(module).parent.as_posix()]
    return [f"tests/{name}.py" for name in names]


def find_mutants(module: str) -> list[Mutant]:
    """Every mutant of a module that changes what it computes."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.work_db import WorkDB, use_db

    with tempfile.TemporaryDirectory() as folder, use_db(Path(folder) / "mutants.sqlite", WorkDB.Mode.create) as work:
        init([ROOT / module], work, {})
        specs = [item.mutations[0] for item in work.work_items]
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    return [
        Mutant(module, spec.operator_name, spec.occurrence, spec.start_pos[0])
        for spec in specs
        if computes(tree, spec.operator_name, tuple(spec.start_pos))
    ]


def draw(mutants: Sequence[Mutant], count: int, *, seed: int) -> list[Mutant]:
    """Choose so many mutants by hashes of what they change, so that edits elsewhere leave the choice as it is."""
    lines = {module: (ROOT / module).read_text(encoding="utf-8").splitlines() for module in {m.module for m in mutants}}
    repeats: Counter[str] = Counter()
    hashes: dict[Mutant, bytes] = {}
    for mutant in mutants:
        name = f"{mutant.module} {mutant.operator} {lines[mutant.module][mutant.line - 1].strip()}"
        repeats[name] += 1
        hashes[mutant] = hashlib.sha256(f"{seed} {name} {repeats[name]}".encode()).digest()
    return sorted(mutants, key=hashes.__getitem__)[:count]


def computes(tree: ast.Module, operator: str, position: tuple[int, int]) -> bool:
    """Whether a mutant changes a computation.

    Annotations and the arguments of `@dataclass` are declarations, and the star of `def f(x, *, y)` is no product.
    """
    around = [node for node in ast.walk(tree) if covers(node, position)]
    declared = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    if any(covers(node, position) for node in declared):
        return False
    if any(isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclass" for node in around):
        return "RemoveDecorator" in operator
    return "ReplaceBinaryOperator" not in operator or any(
        isinstance(node, ast.BinOp | ast.AugAssign) for node in around
    )


def covers(node: ast.AST | None, position: tuple[int, int]) -> bool:
    """Whether a piece of source holds a position (line, column)."""
    if node is None or not hasattr(node, "lineno"):
        return False
    return (node.lineno, node.col_offset) <= position < (node.end_lineno, node.end_col_offset)


def test_all(mutants: Sequence[Mutant], *, workers: int, minutes: float) -> list[Outcome]:
    """Test mutants, module by module; each module has its share of the time that is left."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in PRELOADED:
        importlib.import_module(name)
    end, outcomes = time.monotonic() + 60 * minutes, []
    for module in sorted({mutant.module for mutant in mutants}):
        group = [mutant for mutant in mutants if mutant.module == module]
        now = time.monotonic()
        deadline = now + (end - now) * len(group) / (len(mutants) - len(outcomes))
        with (
            tempfile.TemporaryDirectory(prefix="mutants-") as folder,
            ProcessPoolExecutor(
                workers, multiprocessing.get_context("fork"), Worker.start, (module, folder, deadline)
            ) as pool,
        ):
            outcomes += pool.map(Worker.test, group)
    return outcomes


class Worker:
    """What a process that tests the mutants of one module knows: its copy of the tree is its working directory."""

    limit: float
    deadline: float

    @classmethod
    def start(cls, module: str, folder: str, deadline: float) -> None:
        """Copy the tree, import what mutants of the module cannot change, and time its tests without a mutant."""
        tree = Path(tempfile.mkdtemp(dir=folder))
        copy_tree(tree)
        os.chdir(tree)
        sys.path[:0] = [str(tree / "src"), str(tree)]
        importlib.import_module("tests.conftest")
        sources = importlib.import_module("tests.imports").Sources.under(tree / "src" / "restd")
        mutated = module.removeprefix("src/").removesuffix(".py").replace("/", ".")
        for name in sources.paths:
            if mutated not in sources.loads(name) and not name.endswith("__main__"):
                importlib.import_module(name)
        assert mutated not in sys.modules
        verdict, seconds = run_tests(module, limit=600)
        if verdict != SURVIVED:
            raise RuntimeError(f"The tests of {module} fail or hang without any mutant:\n{Path('log').read_text()}")
        print(f"{module}: {seconds:.1f} CPU seconds without a mutant", flush=True)
        # mutants are as long and as old as one another: bytecode of one would be taken for the next
        sys.dont_write_bytecode = True
        for path in Path(module).parent.glob(f"__pycache__/{Path(module).stem}.*"):
            path.unlink()
        cls.limit, cls.deadline = 5 * seconds + 10, deadline

    @classmethod
    def test(cls, mutant: Mutant) -> Outcome:
        """Apply a mutant, run its tests, and take it back."""
        from cosmic_ray.mutating import use_mutation
        from cosmic_ray.plugins import get_operator

        if time.monotonic() > cls.deadline:
            return Outcome(mutant, NOT_RUN)
        operator = get_operator(mutant.operator)()
        with use_mutation(Path(mutant.module), operator, mutant.occurrence) as (before, after):
            verdict, _ = run_tests(mutant.module, limit=cls.limit)
        lines = list(difflib.unified_diff(before.splitlines(), (after or before).splitlines(), n=0))[2:]
        removed, added = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
        return Outcome(mutant, verdict, removed, added)


def copy_tree(target: Path) -> None:
    """Copy the files of the checkout that git knows, or would know."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "tests", "pyproject.toml"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(module: str, *, limit: float) -> tuple[str, float]:
    """Run the tests of a module in a forked process: whether they failed, and their CPU seconds.

    Args:
        module: whose tests.
        limit: CPU seconds after which they are stopped; a process that sleeps is stopped after ten times as long.
    """
    process, start = os.fork(), time.monotonic()
    if process == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 1))
        with Path("log").open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        code = int(importlib.import_module("pytest").main([*PYTEST, *tests_of(module)]))
        sys.stdout.flush()
        os._exit(code)
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - start > 10 * limit:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.01)
    stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return SURVIVED if status == 0 else TIMEOUT if stopped else KILLED, usage.ru_utime + usage.ru_stime


def is_explained(outcome: Outcome) -> bool:
    """Whether `survivors.toml` has the changed line; without `becomes`, an entry is about every change of its line."""
    return any(
        entry["module"] == outcome.mutant.module
        and entry["line"] == outcome.removed
        and outcome.added in entry.get("becomes", [outcome.added])
        for entry in tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["survivor"]
    )


def report(outcomes: Sequence[Outcome]) -> int:
    """Print what became of the mutants; returns how many survivors have no explanation."""
    survivors = [outcome for outcome in outcomes if outcome.verdict == SURVIVED]
    unexplained = [outcome for outcome in survivors if not is_explained(outcome)]
    for outcome in sorted(unexplained, key=lambda outcome: (outcome.mutant.module, outcome.mutant.line)):
        print(f"\n{outcome.mutant.module}:{outcome.mutant.line}\n- {outcome.removed}\n+ {outcome.added}")
    columns = (KILLED, TIMEOUT, NOT_RUN, SURVIVED)
    print(f"\n{'module':<36}" + "".join(f"{name:>12}" for name in (*columns, "unexplained")))
    for module in [*sorted({outcome.mutant.module for outcome in outcomes}), "all"]:
        counts = Counter(outcome.verdict for outcome in outcomes if module in ("all", outcome.mutant.module))
        left = sum(module in ("all", outcome.mutant.module) for outcome in unexplained)
        print(f"{module:<36}" + "".join(f"{counts[name]:>12,}" for name in columns) + f"{left:>12,}")
    return len(unexplained)


def main() -> None:
    """Find, test and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="Mutate only this module (repeatable).")
    parser.add_argument("--sample", type=int, default=500, help="Mutants to test; 0 for all.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument("--minutes", type=float, default=30, help="Stop after so many minutes.")
    parser.add_argument("--workers", type=int, default=2, help="Processes, each with its own copy of the tree.")
    options = parser.parse_args()
    mutants = [mutant for module in options.module or modules() for mutant in find_mutants(module)]
    count = min(options.sample or len(mutants), len(mutants))
    print(f"{len(mutants):,} mutants, {count:,} of them to be tested (seed {options.seed})", flush=True)
    chosen = draw(mutants, count, seed=options.seed)
    raise SystemExit(bool(report(test_all(chosen, workers=options.workers, minutes=options.minutes))))


if __name__ == "__main__":
    main()
