"""Which tiles an explicit wait or barrier waits for, found from the text around it, and what the order of a pipeline's
statements must then be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from stages import problems

from tilec.frontend.sema.roles.awaits import resolve_awaited_tiles
from tilec.ir.tile import Kernel, TileOp, walk_statements
from tilec.passes.loop.build_problem import LoopProblem
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations
from tilec.support.diagnostics import Diagnostic

Make = Callable[..., Kernel]

TILES = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
u = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
"""
PARAMS = 'A: T.Tensor((1024, 64), "float16"), C: T.Tensor((64, 64), "float32"), n: T.int32'
LOAD = "T.async_copy(A[{row}, 0], {tile})"


def awaited(kernel: Kernel, name: str = "wait") -> list[str]:
    """The tiles of each wait, or barrier, in the order of the text."""
    found = [s for s in walk_statements(kernel.body) if isinstance(s, TileOp) and s.name == name]
    return ["".join(r.buffer.name for r in op.regions) for op in found]


def load(tile: str, row: str = "0") -> str:
    return LOAD.format(row=row, tile=tile)


@pytest.mark.parametrize(
    ("lines", "tiles"),
    [
        (["T.ptx_wait_group(0)"], [""]),
        ([load("s"), load("t"), "T.ptx_wait_group(0)"], ["st"]),
        ([load("s"), load("t"), "T.ptx_wait_group(1)", "T.ptx_wait_group(0)"], ["s", "t"]),
        ([load("s"), load("t"), "T.ptx_wait_group(2)", "T.ptx_wait_group(7)"], ["", ""]),
        # A commit is a group, with nothing in it.
        ([load("s"), "T.ptx_commit_group()", "T.ptx_wait_group(1)"], ["s"]),
        # Only asynchronous copies count.
        ([load("s"), "T.copy(A[0, 0], t)", "T.ptx_wait_group(0)", "T.ptx_wait_group(0)"], ["s", ""]),
        # A tile that a newer copy fills again.
        ([load("s"), load("t"), load("s"), "T.ptx_wait_group(1)", "T.ptx_wait_group(0)"], ["t", "s"]),
        # In a loop, copies of the iteration before are older groups.
        (["for k in T.serial(n):", "    T.ptx_wait_group(0)", "    " + load("s"), "T.ptx_wait_group(0)"], ["s", "s"]),
        (["for k in T.serial(n):", "    T.ptx_wait_group(1)", "    " + load("s"), "    " + load("t")], ["s"]),
        (["for k in T.serial(n):", "    " + load("s"), "    T.ptx_wait_group(1)"], [""]),
        ([load("u"), "for k in T.serial(n):", "    " + load("s"), "    T.ptx_wait_group(1)"], ["u"]),
        # Either path may have been taken.
        (["if n > 0:", "    " + load("s"), "else:", "    " + load("t"), "T.ptx_wait_group(0)"], ["st"]),
        (["if n > 0:", "    " + load("s"), load("t"), "T.ptx_wait_group(1)"], ["s"]),
        # What has been read has been waited for.
        ([load("s"), "T.gemm(s, s, c)", "T.ptx_wait_group(0)"], [""]),
    ],
)
def test_a_wait_is_for_the_tiles_of_older_groups(body: Make, lines: list[str], tiles: list[str]) -> None:
    assert awaited(body(TILES + "\n".join(lines), PARAMS)) == tiles


@pytest.mark.parametrize(
    ("lines", "tiles"),
    [
        (["T.sync_threads()"], [""]),
        (["T.copy(A[0, 0], s)", "T.gemm(s, t, c)", "T.sync_threads()", "T.sync_threads()"], ["st", ""]),
        # A copy that nobody has waited for is not the barrier's matter.
        ([load("s"), "T.sync_threads()", "T.ptx_wait_group(0)", "T.sync_threads()"], ["", ""]),
        ([load("s"), "T.copy(A[0, 0], t)", "T.ptx_wait_group(0)", "T.sync_threads()"], ["st"]),
        # Tiles of loops may have versions there.
        (["for k in T.serial(n):", "    T.copy(A[0, 0], s)", "    T.gemm(s, s, c)", "T.sync_threads()"], [""]),
    ],
)
def test_a_barrier_is_for_the_tiles_above_it(body: Make, lines: list[str], tiles: list[str]) -> None:
    assert awaited(body(TILES + "\n".join(lines), PARAMS), "barrier") == tiles


@pytest.mark.parametrize(
    ("lines", "lines_of_copies"),
    [
        ([load("s"), "T.ptx_wait_group(0)", "T.gemm(s, s, c)"], []),
        ([load("s"), "T.gemm(s, s, c)", "T.gemm(s, s, c)"], [10]),
        ([load("s"), load("t"), "T.ptx_wait_group(1)", "T.gemm(s, s, c)", "T.gemm(t, t, c)"], [11]),
        (["for k in T.serial(n):", "    T.gemm(s, s, c)", "    " + load("s")], [12]),
        (["for k in T.serial(n):", "    T.ptx_wait_group(0)", "    T.gemm(s, s, c)", "    " + load("s")], []),
        (["if n > 0:", "    " + load("s"), "T.gemm(s, s, c)"], [11]),
        ([load("s"), load("s")], []),  # nobody looks
    ],
)
def test_a_copy_that_nobody_waits_for_is_told_of(body: Make, lines: list[str], lines_of_copies: list[int]) -> None:
    warnings: list[Diagnostic] = []
    resolve_awaited_tiles(body(TILES + "\n".join(lines), PARAMS), warnings.append)
    assert {w.code for w in warnings} <= {"unwaited-copy"}
    assert [w.primary.span.line for w in warnings if w.primary] == lines_of_copies


# ---- the order of the statements -------------------------------------------------------------------------------------


def problem(body: Make, lines: list[str], target: str = "sm_80") -> LoopProblem:
    text = TILES + "for k in T.Pipelined(8, num_stages=3):\n" + "\n".join(f"    {line}" for line in lines)
    (found,) = problems(body(text, PARAMS), target).problems
    return found


def around(loop: LoopProblem, op: int) -> set[tuple[int, int, int]]:
    """What an op comes after and before, and from how many iterations ago."""
    return {(e.src, e.dst, e.distance) for e in loop.problem.edges if op in (e.src, e.dst)}


def test_what_has_versions_crosses_a_barrier_of_another_iteration(body: Make) -> None:
    """s has versions, t has not: it is read before it is filled."""
    lines = ["T.copy(A[k * 64, 0], s)", "T.gemm(t, t, c)", "T.sync_threads()", "T.gemm(s, s, c)", "T.copy(A[0, 0], t)"]
    carried = {(1, 2, 0), (2, 1, 1), (2, 4, 0), (4, 2, 1)}
    assert around(problem(body, lines), 2) == {(0, 2, 0), (2, 3, 0)} | carried


def test_a_wait_stands_between_the_copies_and_their_readers(body: Make) -> None:
    lines = [load("s", "k * 64"), "T.ptx_commit_group()", "T.ptx_wait_group(0)", "T.gemm(s, s, c)"]
    found = problem(body, lines)
    assert around(found, 1) == {(0, 1, 0), (1, 2, 0)}
    assert around(found, 2) == {(0, 2, 0), (1, 2, 0), (2, 3, 0)}
    (ring,) = found.problem.rings
    assert (ring.producers, ring.consumers) == ((0,), (2, 3))


def test_the_schedule_verifier_knows_the_order(body: Make) -> None:
    lines = ["T.copy(A[k * 64, 0], s)", "T.sync_threads()", "T.gemm(s, s, c)"]
    found = problem(body, lines).problem
    schedule = solve_problem(found, 1.0).schedule
    assert list(find_violations(found, schedule)) == []
    start = (*schedule.start[:1], schedule.start[2] + found.ops[2].latency, schedule.start[2])
    late = replace(schedule, start=start)
    assert any("order T.sync_threads" in message for message in find_violations(found, late))
