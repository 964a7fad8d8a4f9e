"""Accesses to one tensor wait for one another where they may reach the same elements, and nowhere else."""

from __future__ import annotations

import random

import numpy as np
import pytest
from building import outcome
from mutants import mutants

from tilec.driver.build import Build, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.observer import Observer
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.passes.lower.waits import scoreboard
from tilec.support.diagnostics import InternalError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ["sm_80", "sm_90a", "sm_100a"]
HEAD = """\
import tilelang.language as T
@T.prim_func
def kernel(X: T.Tensor((64, 256), "float32"), n: T.int32):
    with T.Kernel(2, threads=128) as bx:
        s = T.alloc_shared((256,), "float32")
        t = T.alloc_shared((256,), "float32")
        f = T.alloc_fragment((256,), "float32")
"""
# A row of the block's 32 in each iteration, which is changed by other threads than have copied it.
ROWS = """
for k in T.Pipelined({trips}, num_stages=3):
    T.copy(X[bx * 32 + {load}, 0:256], s)
    for i in T.Parallel(256):
        {body}
"""
CHANGES = {
    "through a tile": ("t[i] = s[255 - i] * 2.0 + 1.0", "T.copy(t, X[bx * 32 + {store}, 0:256])"),
    "through registers": ("f[i] = s[255 - i] * 2.0 + 1.0", "T.copy(f, X[bx * 32 + {store}, 0:256])"),
    "by a nest": ("X[bx * 32 + {store}, i] = s[255 - i] * 2.0 + 1.0", ""),
}


def text_of(change: str, trips: str = "12", load: str = "k", store: str = "k") -> str:
    body, rest = CHANGES[change]
    whole = ROWS.format(trips=trips, load=load, body=body.format(store=store))
    return whole + (f"    {rest.format(store=store)}\n" if rest else "")


def made(body: str, target: str = "sm_80") -> Build:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return build_kernel(SourceFile("kernel.tl", HEAD + lines), CompileOptions(target=target), Observer())


def runs(result: Build, n: int = 11) -> None:
    given = emulate.draw_arguments(result.kernel, result.manifest, 0)
    given.scalars["n"] = n
    expected = given.copy()
    emulate.emulate_build(result, given, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(result.kernel, expected)
    np.testing.assert_allclose(given.tensors["X"], expected.tensors["X"], rtol=1e-4, atol=1e-4)


def waits(result: Build, kind: type[warp.Operation]) -> list[warp.Operation]:
    """Those in every iteration of the outermost loops."""
    program = result.program
    loops = (op for role in program.roles for op in warp.walk_operations(role.body) if isinstance(op, warp.Loop))
    return [op for loop in loops for op in loop.body if isinstance(op, kind)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("trips", ["12", "1, 12", "n"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_of_its_own_runs_ahead(change: str, trips: str, target: str) -> None:
    """The loads of later rows stay in flight while a row is stored, and nobody meets for them."""
    result = made(text_of(change, trips), target)
    found = waits(result, warp.CpAsyncWait)
    assert found and all(isinstance(op, warp.CpAsyncWait) and op.pending for op in found)
    # One between the copy's threads and those who read it, one before its version, or another tile, is filled again.
    assert len(waits(result, warp.BarSync)) <= 2
    runs(result)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("store", ["k + 1", "k + 2", "k + 3", "(k + 1) % 12", "11 - k", "n - k", "5"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_of_another_iteration_is_waited_for(change: str, store: str, target: str) -> None:
    for serial in (False, True):
        text = text_of(change, "9", "k", store)
        runs(made(text.replace(", num_stages=3", ", num_stages=0") if serial else text, target), n=8)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("far", [1, 2, 3, 6, 7, 8, 9, 11])
def test_serial_loops_count_iterations(far: int, target: str) -> None:
    """What one iteration writes another one reads, so many later, by other threads."""
    text = f"""
for k in T.serial({32 - far}):
    for i in T.Parallel(256):
        X[bx * 32 + k + {far}, i] = X[bx * 32 + k, 255 - i] + 1.0"""
    result = made(text, target)
    assert waits(result, warp.BarSync)  # of nothing further away than is followed it is known
    runs(result)


@pytest.mark.parametrize(
    "text",
    [
        # Never the same row: even ones are read, odd ones written.
        """
for k in T.serial(6):
    for i in T.Parallel(256):
        X[bx * 32 + 2 * k + 1, i] = X[bx * 32 + 2 * k, 255 - i] + 1.0""",
        # Two loops over other halves.
        """
for k in T.serial(6):
    for i in T.Parallel(128):
        X[bx * 32 + k, i] = X[bx * 32 + k, 255 - i] + 1.0
for k in T.serial(6, 32):
    for i in T.Parallel(128):
        X[bx * 32 + k, 255 - i] = X[bx * 32 + k, i] + 1.0""",
    ],
)
def test_parts_that_never_meet(text: str) -> None:
    result = made(text)
    runs(result)


def test_many_accesses_are_not_told_apart() -> None:
    """Each would be looked at with each other one: a loop of many statements waits as if the tensor were one thing."""
    nest = """
    for i in T.Parallel(256):
        X[bx * 32 + k, i] = X[bx * 32 + k + {}, 255 - i] + 1.0"""
    few, many = (
        made("\nfor k in T.serial(12):" + "".join(nest.format(i + 1) for i in range(count))) for count in (3, 18)
    )
    assert len(waits(few, warp.BarSync)) < len(waits(many, warp.BarSync)) == 18
    runs(few)
    runs(many)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("store", ["k", "k + 1", "k + 2"])
def test_nothing_can_be_missing(change: str, store: str) -> None:
    result = made(text_of(change, "9", "k", store))
    unnoticed = {what: program for what, program in mutants(result.program) if not list(program_violations(program))}
    assert [what for what, program in unnoticed.items() if not outcome(result, program, "sm_80")] == []


@pytest.mark.parametrize("last", [6, 14])
@pytest.mark.parametrize(("store", "load"), [("k + 1", "k"), ("k + 3", "k"), ("k", "k + 4"), ("2 * k + 2", "2 * k")])
def test_the_verifier_finds_by_itself_which_parts_meet(
    store: str, load: str, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placed as if no two accesses ever reached one part, barriers are missing."""
    text = f"""
for k in T.serial({last}):
    for i in T.Parallel(256):
        X[bx * 32 + {store}, i] = X[bx * 32 + {load}, 255 - i] + 1.0"""
    runs(made(text))
    monkeypatch.setattr(scoreboard, "are_disjoint", lambda *_: True)
    with pytest.raises(InternalError, match="Elementwise on X has no barrier after Elementwise"):
        made(text)


@pytest.mark.parametrize("store", ["k + 2", "k + 3"])
def test_the_verifier_finds_loads_that_are_still_in_flight(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was asked for is overwritten some iterations sooner than anybody waits for it."""
    text = text_of("through a tile", "9", "k", store)
    runs(made(text))
    monkeypatch.setattr(scoreboard, "are_disjoint", lambda *_: True)
    monkeypatch.setattr("tilec.passes.loop.build_problem.RegionAnalysis.find_distance", lambda *_: None)
    with pytest.raises(InternalError, match=r"on X does not wait for CpAsync|on X has no barrier after"):
        made(text)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_parts(seed: int) -> None:
    draw = random.Random(seed)
    scale, rows = draw.choice((1, 1, 2)), draw.randint(3, 6)
    load, store = (f"{draw.choice((scale, scale, 1))} * k + {draw.choice((0, 0, 1, 2))}" for _ in range(2))
    change, target = draw.choice(list(CHANGES)), draw.choice(TARGETS)
    text = text_of(change, draw.choice((str(rows - 1), "n")), load, store)
    if draw.random() < 0.3:
        text += text_of(draw.choice(list(CHANGES)), str(rows - 1), store, load)
    runs(made(text, target), n=rows - 1)


STRIDED = """
thread = T.get_thread_binding()
x = T.alloc_local((4,), "float32")
for r in T.unroll(4):
    x[r] = X[bx * 32, thread + r] * 2.0
for r in T.unroll(4):
    X[bx * 32 + 1 + thread // 64, {index}] = x[r]
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("index", "meet"),
    [
        ("16 * (thread // 4 % 16) + 4 * r + thread % 4", False),  # 4 of every 16
        ("16 * (thread // 4 % 16) + 4 * r + n * 64 + thread % 4", False),
        ("16 * (thread // 4 % 16) + 4 * (3 - r) + thread % 4", False),
        ("16 * (thread // 8 % 8) + 4 * r + thread % 8", True),  # each 8, at 4 between them
        ("12 * (thread // 4 % 16) + 4 * r + thread % 4", True),  # the fourth 4 are the first ones of the next 12
    ],
)
def test_parts_that_interleave_do_not_wait(index: str, meet: bool, target: str) -> None:
    """Threads that store runs at a stride meet no others that store the runs between them."""
    result = made(STRIDED.format(index=index), target)
    assert ("bar.sync" in result.ptx) == meet
    runs(result, n=0)
