"""What all tests share: golden files, and kernels from text."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tiers import Test, Tier, selected

from tilec.driver.build import Observer, load_kernel
from tilec.frontend.sema.elaborate import Define
from tilec.ir.tile import Kernel
from tilec.ptx import assemble as assembler
from tilec.sched import cache
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TESTS = Path(__file__).parent
Golden = Callable[[str, str, str], None]

# The command itself collects no garbage while it builds; thousands of builds in a process need it, but seldom: a
# worker that never collects grows to 4 GiB.
gc.set_threshold(200_000, 10, 3)

# Commands that tests start would compile the compiler anew, each of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Products of small matrices: threads that wait for one another would take the time of those that run other tests. numpy
# reads this when it is imported, which nothing above does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What runs behind a shell (`&`) ignores Ctrl-C, and under `nohup` SIGHUP; so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

# Whatever a test compiles, each pass's value is verified thoroughly.
os.environ.setdefault("TILEC_VERIFY", "1")

# `--hypothesis-profile=thorough` draws more, and `full` ten times as many; what is drawn without either is the same in
# every run, less of it in the default tier.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=6)
settings.register_profile("normal", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.register_profile("full", deadline=None, max_examples=2500)
settings.load_profile("normal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the golden files with what the code makes now")
    parser.addoption("--exhaustive", action="store_true", help="run every test in all of its forms: see tests/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    if _tier(config) == "default" and not config.getoption("--hypothesis-profile"):
        settings.load_profile("quick")


def _tier(config: pytest.Config) -> Tier:
    if any((config.getoption("--exhaustive"), config.getoption("--bless"), *("::" in told for told in config.args))):
        return "exhaustive"
    return "default"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before anything else is deselected: which forms of a test are run does not depend on what else is asked for."""
    run = selected([_test_of(item) for item in items], _tier(config))
    gc.collect()
    gc.freeze()  # what is there now stays: nobody need look at it again
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in run])
    items[:] = [item for item in items if item.nodeid in run]


def _test_of(item: pytest.Item) -> Test:
    """Return what the tiers go by."""
    some = item.get_closest_marker("some")
    is_weekly = any(item.get_closest_marker(name) is not None for name in ("weekly", "peers"))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return Test(item.nodeid, parameters, is_weekly, None if some is None else int(some.args[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let workers that are done take tests from others, unless `--dist` says how.

    The dearest modules come last, and one worker would be left with them."""
    if any(str(word).startswith("--dist") for word in config.invocation_params.args):
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _once_in_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test has solved or assembled, no other test of the run does again, in whichever process; unless a test
    says itself where schedules are kept. What is taken from the folder is verified anew."""
    run = tmp_path_factory.getbasetemp()
    shared = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
    solve_cached, assemble = cache.solve_cached, assembler.assemble_module

    def solve(problem: Problem, folder: Path | None, *args: Any, **asked: Any) -> Solution:
        return solve_cached(problem, folder or shared / "solved", *args, **asked)

    def assemble_once(ptx: str, target: str, **asked: Any) -> assembler.AssemblerResult:
        told = repr((ptx, target, sorted(asked.items())))
        path = shared / "assembled" / hashlib.sha256(told.encode()).hexdigest()
        if path.exists():
            known: assembler.AssemblerResult = pickle.loads(zlib.decompress(path.read_bytes()))
            return known
        made = assemble(ptx, target, **asked)
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")  # another process sees a whole file or none
        part.write_bytes(zlib.compress(pickle.dumps(made), 1))  # there are thousands of them
        part.replace(path)
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "solve_cached", solve)
        patched.setattr(assembler, "assemble_module", assemble_once)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(stage, name, text)` compares `text` with tests/golden/<stage>/<name>.txt."""

    def compare(stage: str, name: str, text: str) -> None:
        path = TESTS / "golden" / stage / f"{name}.txt"
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        where = path.relative_to(TESTS.parent)
        if not path.exists():
            pytest.fail(f"{where} does not exist; `pytest --bless` writes it", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"differs from {where}; if the change is meant, `pytest --bless` and read the diff"

    return compare


@pytest.fixture
def kernel() -> Callable[..., Kernel]:
    """`kernel(text, M=64)` is the folded tile IR of a kernel file, with constants overridden."""

    def build(text: str, entry: str | None = None, **defines: Define) -> Kernel:
        options = CompileOptions(defines=tuple(defines.items()), entry=entry)
        return load_kernel(SourceFile("kernel.tl", text), options, Observer())

    return build


@pytest.fixture
def body(kernel: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """`body(text, params)` is the tile IR of a kernel that has these lines under `T.Kernel(4, threads=128) as bx`."""

    def build(text: str, params: str = "", threads: int = 128) -> Kernel:
        lines = "".join(f"        {line}\n" for line in text.strip("\n").split("\n"))
        head = "import tilelang.language as T\n\n@T.prim_func\n"
        return kernel(f"{head}def kernel({params}):\n    with T.Kernel(4, threads={threads}) as bx:\n{lines}")

    return build
