"""Every code that a diagnostic can carry is met by a test: in a kernel of this folder, or on the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tilec
from tilec.cli.main import main
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.ir.tile import Kernel
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.scheduling import schedule_loop
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.solution import Attempt, Solution

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "samples"

# Warnings and refusals that no kernel provokes: the solver proves small loops, and one version always fits where the
# tiles do. These tests make them happen, and those of tests/unit/test_unverified.py.
MADE_HERE = {
    *("emulation-fault", "emulation-mismatch", "emulation-not-finite"),
    *(
        "not-verified",
        "schedule-not-proven",
        "unreadable-file",
        "unschedulable",
        "unwritten-elements",
        "needless-option",
    ),
}


@cache
def raised() -> frozenset[str]:
    """Return the codes in calls of `fail`, `warning` and `Diagnostic`."""
    return frozenset(walk_raised())


def walk_raised() -> Iterator[str]:
    for path in sorted(Path(tilec.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\b(raise_error|Diagnostic|make_warning)\(", text) else ():
            if (
                isinstance(node, ast.Call)
                and node.args
                and getattr(node.func, "id", "") in ("raise_error", "Diagnostic", "make_warning")
            ):
                code = node.args[0]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    yield code.value


def test_every_code_has_a_test() -> None:
    kernels = {code for path in HERE.glob("*.tl") for code in re.findall(r"\[([a-z0-9-]+)\]", path.read_text("utf-8"))}
    others = "".join(path.read_text("utf-8") for path in HERE.parent.rglob("test_*.py") if path != Path(__file__))
    untested = [c for c in sorted(raised() - kernels - MADE_HERE) if f'"{c}"' not in others]
    assert untested == []


def test_kernels_expect_only_codes_that_exist() -> None:
    known = set(raised())
    for path in HERE.glob("*.tl"):
        expected = set(re.findall(r"# (?:error|warning)(?:@\d+)?: \[([a-z0-9-]+)\]", path.read_text("utf-8")))
        assert expected and expected <= known, path.name


# ---- what needs a little help to happen ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))


def reported(capfd: pytest.CaptureFixture[str]) -> str:
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


UNWRITTEN = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=32) as bx:
        s = T.alloc_shared((64,), "float32")
        T.copy(s, A[0])
"""


def test_a_fault_names_the_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "unwritten.tl"
    path.write_text(UNWRITTEN)
    assert main(["emulate", str(path)]) == 1
    found = reported(capfd)
    assert found.count("error[emulation-fault]") == 1
    assert "unwritten.tl:6:9" in found


def test_a_mismatch(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """As a bug of the compiler would show."""

    def another(kernel: Kernel, arguments: KernelArguments) -> None:
        arguments.tensors["C"].fill(7)

    monkeypatch.setattr(emulate, "run_reference", another)
    assert main(["emulate", str(SAMPLES / "vector_add.tl"), "-D", "N=100", "--target", "sm_80"]) == 1
    assert "error[emulation-mismatch]" in reported(capfd)


NOT_FINITE = """
import tilelang.language as T


@T.prim_func
def roots(A: T.Tensor((64,), "{dtype}"), B: T.Tensor((64, 2), "{dtype}"), C: T.Tensor((64,), "{dtype}")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(64):
            B[i, 0] = T.sqrt(-T.abs(A[i]) - T.cast(1, "{dtype}"))
        for i in T.Parallel(64):
            C[i] = T.if_then_else(i < 32, A[i] / (A[i] - A[i]), A[i])
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_that_are_no_numbers(tmp_path: Path, capfd: pytest.CaptureFixture[str], dtype: str) -> None:
    """Both sides agree that there is none, which is no agreement. What the kernel leaves alone does not count."""
    path = tmp_path / "roots.tl"
    path.write_text(NOT_FINITE.format(dtype=dtype))
    assert main(["emulate", str(path), "--target", "sm_80"]) == 1
    found = reported(capfd)
    assert found.count("error[emulation-not-finite]") == 1
    assert "64 of 64 elements of B are NaN or infinite" in found
    assert "the first is B[0, 0]" in found


def test_a_file_that_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    """A name that no file can have."""
    assert main(["check", "a\0b.tl"]) == 1
    assert "error[unreadable-file]" in reported(capfd)


def test_a_loop_without_a_schedule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unschedulable("pool", "smem", "pool smem would hold 9 of 8", (0,))

    monkeypatch.setattr("tilec.sched.cache.solve_cached", refuse)
    assert main([str(SAMPLES / "gemm.tl"), "-o", str(tmp_path / "gemm.cubin")]) == 1
    found = reported(capfd)
    assert "error[unschedulable]: no schedule exists: pool smem would hold 9 of 8" in found
    assert "gemm.tl:25:" in found
    assert not (tmp_path / "gemm.cubin").exists()


def test_a_schedule_that_is_not_proven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A time-limited answer is used, with a warning."""
    solve = schedule_loop.solve_loop

    def tired(loop: LoopProblem, *asked: Any, **named: Any) -> Solution:
        solution = solve(loop, *asked, **named)
        return replace(solution, attempts=(Attempt(1, "unknown", "solver", ""), *solution.attempts))

    monkeypatch.setattr(schedule_loop, "solve_loop", tired)
    assert main([str(SAMPLES / "gemm.tl"), "-o", str(tmp_path / "gemm.cubin")]) == 0
    assert "warning[schedule-not-proven]: II " in reported(capfd)
    assert (tmp_path / "gemm.cubin").exists()


def test_a_tile_that_is_never_set_explains_what_is_no_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sums.tl"
    path.write_text("""
import tilelang.language as T


@T.prim_func
def sums(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        ss = T.alloc_fragment((64, 64), "float32")
        for i, j in T.Parallel(64, 64):
            B[i, j] = A[i, j] + ss[i, j]
""")
    assert main(["emulate", str(path), "--target", "sm_80"]) == 1
    found = reported(capfd)
    assert "4,096 of 4,096 elements of B are NaN" in found
    assert "so nothing was compared" in found
    assert "ss is read but never written (read in line 9)" in found


def test_elements_that_no_block_writes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "half.tl"
    path.write_text("""
import tilelang.language as T


@T.prim_func
def half(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32"), N: T.Tensor((128,), "int32")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(64):
            B[i] = A[i]
            N[i] = i
""")
    assert main(["emulate", str(path), "--target", "sm_80"]) == 0
    found = reported(capfd)
    assert "warning[unwritten-elements]: no block wrote 64 of the 128 elements of B" in found
    assert "64 of the 128 elements of N" in found
