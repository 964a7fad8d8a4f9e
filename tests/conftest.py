"""What all tests share: golden files, and kernels from text."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tilec.ir.tile import Kernel
from tilec.passes.elaborate import Define, elaborate
from tilec.passes.fold import fold
from tilec.sched import cache
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.source import SourceFile
from tilec.syntax.parse import parse

TESTS = Path(__file__).parent
Golden = Callable[[str, str, str], None]

# The command itself collects no garbage while it builds; thousands of builds in a process need it, but seldom.
gc.set_threshold(200_000, 20, 100)

# `--hypothesis-profile=thorough` draws more; what is drawn without it is the same in every run.
settings.register_profile("normal", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile("normal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the golden files with what the code makes now")


@pytest.fixture(scope="session", autouse=True)
def _schedules_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test has solved, no other test of the run solves again, in whichever process; unless a test says itself
    where schedules are kept. What is taken from the folder is verified anew."""
    run = tmp_path_factory.getbasetemp()
    shared = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "solved"
    solve_cached = cache.solve_cached

    def solve(problem: Problem, folder: Path | None, *args: Any, **asked: Any) -> Solution:
        return solve_cached(problem, folder or shared, *args, **asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "solve_cached", solve)
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
        source = SourceFile("kernel.tl", text)
        return fold(elaborate(parse(source), source, defines, entry))

    return build


@pytest.fixture
def body(kernel: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """`body(text, params)` is the tile IR of a kernel that has these lines under `T.Kernel(4, threads=128) as bx`."""

    def build(text: str, params: str = "", threads: int = 128) -> Kernel:
        lines = "".join(f"        {line}\n" for line in text.strip("\n").split("\n"))
        head = "import tilelang.language as T\n\n@T.prim_func\n"
        return kernel(f"{head}def kernel({params}):\n    with T.Kernel(4, threads={threads}) as bx:\n{lines}")

    return build
