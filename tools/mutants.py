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
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "tools" / "survivors.toml"
DISTILL = ("test_distill_equations", "test_distill_output", "test_distiller", "test_distill_temperature")
DISTILL += ("test_distill_extensions", "test_distill_controls")
CODES = ("test_codes", "test_trie")
TESTS = {
    "src/restd/distill": DISTILL,
    "src/restd/distill/controls.py": ("test_distill_controls", "test_distill_extensions"),
    "src/restd/distill/extensions.py": ("test_distill_extensions",),
    "src/restd/distill/matching.py": ("test_distill_controls",),
    "src/restd/distill/temperature.py": ("test_distill_temperature", "test_distiller"),
    "src/restd/codes": CODES,
    "src/restd/codes/trie.py": ("test_trie", "test_codes"),
    "src/restd/search/beam.py": ("test_search_beam",),
    "src/restd/evaluate/metrics.py": ("test_metrics",),
    "src/restd/evaluate/statistics.py": ("test_statistics",),
}
"""Test files of each module, or of all modules of a folder; the first to fail ends the run of a mutant."""
LEFT_OUT = "not processes and not large"
"""Tests whose names say so are left out: they start processes or take long."""
PRELOADED = ("torch", "numpy", "scipy.stats", "sklearn.decomposition", "faiss", "transformers", "pyarrow.parquet")
PRELOADED += ("sentence_transformers", "safetensors.torch", "accelerate", "pydantic", "rich.progress", "jaxtyping")
PRELOADED += ("beartype", "hypothesis", "pytest")
PYTEST = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "-k", LEFT_OUT)
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
    seconds: float
    diff: str = ""


def modules_of(root: Path) -> list[str]:
    """Modules to mutate, relative to the tree."""
    paths = [path for name in TESTS for path in ([root / name] if name.endswith(".py") else (root / name).glob("*.py"))]
    return sorted({path.relative_to(root).as_posix() for path in paths if path.name != "__init__.py"})


def tests_of(module: str) -> tuple[str, ...]:
    """Test files of a module."""
    names = TESTS.get(module) or TESTS[Path(module).parent.as_posix()]
    return tuple(f"tests/{name}.py" for name in names)


def find_mutants(module: str, root: Path) -> list[Mutant]:
    """Every mutant of a module that changes what it computes."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.work_db import WorkDB, use_db

    with tempfile.TemporaryDirectory() as folder, use_db(Path(folder) / "mutants.sqlite", WorkDB.Mode.create) as work:
        init([root / module], work, {})
        specs = [item.mutations[0] for item in work.work_items]
    tree = ast.parse((root / module).read_text(encoding="utf-8"))
    return [
        Mutant(module, spec.operator_name, spec.occurrence, spec.start_pos[0])
        for spec in specs
        if computes(tree, spec.operator_name, tuple(spec.start_pos))
    ]


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


def sample(mutants: Sequence[Mutant], count: int, *, seed: int) -> list[Mutant]:
    """Some of the mutants, the same ones for the same seed; all of them where there are no more."""
    order = list(mutants)
    random.Random(seed).shuffle(order)
    return order[:count] if count else order


def copy_tree(target: Path) -> None:
    """Copy the files of the checkout that git knows, or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and name.startswith(("src/", "tests/", "pyproject.toml")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def prepare(module: str, tree: Path) -> float:
    """Import what mutants of a module cannot change; returns the CPU seconds of its tests without a mutant."""
    sources = importlib.import_module("tests.imports").Sources.under(tree / "src" / "restd")
    mutated = module.removeprefix("src/").removesuffix(".py").replace("/", ".")
    names = tree / "imported.json"
    for last in (False, True):
        verdict, seconds, output = run_tests(module, tree, limit=600, names=None if last else names)
        if verdict != SURVIVED:
            raise RuntimeError(f"The tests of {module} fail or hang without any mutant:\n{output}")
        if not last:
            for name in json.loads(names.read_text(encoding="utf-8")):
                if mutated not in sources.loads(name):
                    importlib.import_module(name)
    assert mutated not in sys.modules
    return seconds


def test_mutant(mutant: Mutant, tree: Path, *, limit: float) -> Outcome:
    """Apply a mutant, run its tests, and take it back."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    with use_mutation(tree / mutant.module, get_operator(mutant.operator)(), mutant.occurrence) as (before, after):
        verdict, seconds, _ = run_tests(mutant.module, tree, limit=limit)
    return Outcome(mutant, verdict, seconds, difference(before, after or before, mutant.module))


def run_tests(module: str, tree: Path, *, limit: float, names: Path | None = None) -> tuple[str, float, str]:
    """Run the tests of a module in a forked process: whether they failed, their CPU seconds, and their output.

    Args:
        module: whose tests.
        tree: the copy to run them in.
        limit: CPU seconds after which they are stopped; a process that sleeps is stopped after ten times as long.
        names: file that receives the names of the modules of restd that they import.
    """
    log, start = tree / "tests.log", time.monotonic()
    process = os.fork()
    if process == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 1))
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        code = int(importlib.import_module("pytest").main([*PYTEST, *tests_of(module)]))
        if names is not None:
            names.write_text(json.dumps([name for name in sys.modules if name.startswith("restd.")]), encoding="utf-8")
        os._exit(code)
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - start > 10 * limit:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.01)
    stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    verdict = SURVIVED if status == 0 else TIMEOUT if stopped else KILLED
    return verdict, usage.ru_utime + usage.ru_stime, log.read_text(errors="replace")[-3_000:]


def difference(before: str, after: str, module: str) -> str:
    """The changed lines of a mutant."""
    import difflib

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), module, module, lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def work(tree: Path, mutants: Sequence[Mutant], *, deadline: float, output: Path) -> None:
    """One worker: its share of the mutants, module by module, until time is up."""
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    sys.dont_write_bytecode = (
        True  # mutants are as long and as old as one another: cached bytecode would be taken for them
    )
    for name in (*PRELOADED, "tests.conftest"):
        importlib.import_module(name)
    for module in sorted({mutant.module for mutant in mutants}):
        group = [mutant for mutant in mutants if mutant.module == module]
        # a process per module: what is imported for one may be what the next one mutates
        in_fork(partial(work_on_module, module, group, tree, deadline=deadline, output=output))


def work_on_module(module: str, mutants: Sequence[Mutant], tree: Path, *, deadline: float, output: Path) -> None:
    """Test mutants of one module, and write down what became of each."""
    usual = prepare(module, tree)
    print(f"{module}: {len(mutants):,} mutants, {usual:.1f} s each without a mutant", flush=True)
    for mutant in mutants:
        late = time.monotonic() > deadline
        outcome = Outcome(mutant, NOT_RUN, 0.0) if late else test_mutant(mutant, tree, limit=5 * usual + 10)
        with output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(outcome)) + "\n")


def in_fork(action: Callable[[], None], *, wait: bool = True) -> int:
    """Do something in a forked process; an error there is an error here."""
    process = os.fork()
    if process == 0:
        code = 0
        try:
            action()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            code = 1
        os._exit(code)
    if wait:
        wait_for(process)
    return process


def wait_for(process: int) -> None:
    """Wait for a forked process."""
    if os.waitpid(process, 0)[1]:
        raise RuntimeError("A worker failed; its message is above.")


def run(mutants: Sequence[Mutant], *, workers: int, minutes: float) -> list[Outcome]:
    """Test mutants side by side, each worker in its own copy of the tree."""
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outputs, processes = [Path(folder) / f"{number}.jsonl" for number in range(workers)], []
        for number, output in enumerate(outputs):
            tree, share = Path(folder) / f"tree-{number}", mutants[number::workers]
            copy_tree(tree)
            action = partial(work, tree, share, deadline=deadline, output=output)
            processes.append(in_fork(action, wait=False))
        for process in processes:
            wait_for(process)
        return [outcome for output in outputs if output.is_file() for outcome in read_outcomes(output)]


def read_outcomes(path: Path) -> Iterator[Outcome]:
    """Outcomes as a worker wrote them."""
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        yield Outcome(**{**entry, "mutant": Mutant(**entry["mutant"])})


def explanations() -> list[dict[str, str]]:
    """Survivors that cannot be killed, each with its module, its changed line and the reason."""
    if not EXPLAINED.is_file():
        return []
    return tomllib.loads(EXPLAINED.read_text(encoding="utf-8")).get("survivor", [])


def is_explained(outcome: Outcome, known: Iterable[dict[str, str]]) -> bool:
    """Whether the changed line of a survivor is among the explained ones."""
    added = {re.sub(r"\s+", " ", line[1:]).strip() for line in outcome.diff.splitlines() if line.startswith("+")}
    return any(
        entry["module"] == outcome.mutant.module and re.sub(r"\s+", " ", entry["line"]).strip() in added
        for entry in known
    )


def report(outcomes: Sequence[Outcome], *, total: int) -> tuple[str, int]:
    """Text of the result, and how many survivors have no explanation."""
    stream, known = io.StringIO(), explanations()
    survivors = sorted(
        (outcome for outcome in outcomes if outcome.verdict == SURVIVED),
        key=lambda outcome: (outcome.mutant.module, outcome.mutant.line),
    )
    open_survivors = [outcome for outcome in survivors if not is_explained(outcome, known)]
    for outcome in open_survivors:
        print(f"\n{outcome.mutant.module}:{outcome.mutant.line} {outcome.mutant.operator}", file=stream)
        print(outcome.diff, file=stream)
    print(f"\n{'module':<42}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'explained':>10}", file=stream)
    by_module: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts = by_module.setdefault(outcome.mutant.module, Counter())
        counts[outcome.verdict] += 1
        counts["explained"] += outcome.verdict == SURVIVED and outcome not in open_survivors
    for module, counts in sorted(by_module.items()):
        killed, timeout, survived, explained = (counts[name] for name in (KILLED, TIMEOUT, SURVIVED, "explained"))
        mutants = counts.total() - explained
        print(f"{module:<42}{mutants:>8}{killed:>8}{timeout:>8}{survived:>9}{explained:>10}", file=stream)
    tested = [outcome for outcome in outcomes if outcome.verdict != NOT_RUN]
    killed = sum(outcome.verdict in (KILLED, TIMEOUT) for outcome in tested)
    spent = sum(outcome.seconds for outcome in tested)
    print(
        f"\n{len(tested):,} of {total:,} mutants tested ({len(outcomes) - len(tested):,} not reached in time): "
        f"{killed:,} killed, {len(survivors):,} survived, {len(survivors) - len(open_survivors):,} of them explained; "
        f"{spent / max(len(tested), 1):.1f} CPU seconds per mutant.",
        file=stream,
    )
    return stream.getvalue(), len(open_survivors)


def main() -> None:
    """Find, test and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="Mutate only this module (repeatable).")
    parser.add_argument("--sample", type=int, default=1_200, help="Mutants to test, drawn at random; 0 for all.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument("--minutes", type=float, default=30, help="Stop after so many minutes.")
    parser.add_argument("--workers", type=int, default=2, help="Processes, each with its own copy of the tree.")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    mutants = [mutant for module in options.module or modules_of(ROOT) for mutant in find_mutants(module, ROOT)]
    chosen = sample(mutants, options.sample, seed=options.seed)
    print(f"{len(mutants):,} mutants, {len(chosen):,} of them to be tested (seed {options.seed})", flush=True)
    text, unexplained = report(run(chosen, workers=options.workers, minutes=options.minutes), total=len(mutants))
    print(text)
    raise SystemExit(bool(unexplained))


if __name__ == "__main__":
    main()
