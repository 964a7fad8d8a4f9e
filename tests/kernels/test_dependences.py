"""No dependence of the analysis is there for nothing: without any one of them a schedule holds that makes the program
wrong, and both judges notice it: the verifier with the edge, and the emulator, which knows of none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pipelines import Loop
from scheduled import differences, tile_ir, timed
from stages import planned, problems, with_schedules

from tilec.emu import Fault
from tilec.ir.tile import Kernel
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.passes.state import KernelState
from tilec.ptx.text import print_module
from tilec.sched.problem import Edge, Problem
from tilec.sched.schedule import Schedule
from tilec.sched.verify import find_violations
from tilec.support.diagnostics import InternalError
from tilec.target import table as targets

TARGETS = ["sm_80", "sm_90a"]

HEAD = """\
import tilelang.language as T
S = 16
@T.prim_func
def kernel(
    X: T.Tensor((64,), "float32"), Ends: T.Tensor((4,), "int32"), G: T.Tensor((S, S), "float32"),
    O: T.Tensor((6 * S, S), "float32"), P: T.Tensor((6 * S, S), "float32"),
):
    with T.Kernel(1, threads=32) as bx:
        f = T.alloc_fragment((S, S), "float32")
        s = T.alloc_shared((S, S), "float32")
        v = T.alloc_var("float32", init=1.0)
        T.clear(f)
        T.clear(s)
        for z in T.serial(2):
"""

STORAGE = {"fragment": "f[i, j]", "shared": "s[i, j]", "global": "G[i, j]", "variable": "v"}


def write(element: str, value: str) -> list[str]:
    if element == "v":
        return [f"v = {value.replace('i', '1')}"]
    return ["for i, j in T.Parallel(S, S):", f"    {element} = {value}"]


def read(element: str, tensor: str) -> list[str]:
    return ["for i, j in T.Parallel(S, S):", f"    {tensor}[k * S + i, j] = {element}"]


def only_if(condition: str, lines: list[str]) -> list[str]:
    return [f"if {condition}:", *(f"    {line}" for line in lines)]


def bodies(element: str) -> dict[str, list[str]]:
    """Loop bodies in which one value is written and read in each of the ways that order two statements."""
    one, other = write(element, "X[k * 3 + i]"), write(element, "X[k * 5 + i] - 7.0")
    return {
        "rewritten": [*one, *read(element, "O"), *other, *read(element, "P")],
        "handed on": [*read(element, "O"), *one],
        "overwritten": [*one, *only_if("k % 2 == 0", other)],
    }


def kernel_of(body: list[str], element: str) -> Loop:
    """The loop runs three times, then four times: what its last iterations leave shows in what is stored after it."""
    lines = ["for k in T.Pipelined(z + 3):", *(f"    {line}" for line in body)]
    lines += ["for i, j in T.Parallel(S, S):", f"    O[(4 + z) * S + i, j] = {element}"]
    return Loop(HEAD + "".join(f"            {line}\n" for line in lines), 0, 0)


def with_problem(kernel: Kernel, target: str) -> tuple[KernelState, LoopProblem]:
    work = problems(kernel, target, "unspecialize" if targets.load_target(target).has("tma") else "auto")
    (loop,) = work.problems
    return work, loop


def without(problem: Problem, edge: Edge) -> Problem:
    """The problem without what keeps this pair of statements in order."""
    pair = (edge.src, edge.dst, edge.distance)
    return replace(problem, edges=tuple(e for e in problem.edges if (e.src, e.dst, e.distance) != pair))


def breaking(problem: Problem, edge: Edge) -> Schedule | None:
    """A schedule that holds but for this edge; None where the other edges imply it. Stages and order are tried, the
    smallest stages first: statement i of iteration k issues at (stage·n + place) + k·n."""
    n = len(problem.ops)
    others = without(problem, edge)
    for stages in sorted(itertools.product(range(3), repeat=n), key=sum):
        for order in itertools.permutations(range(n)):
            time = [stages[op] * n + order.index(op) for op in range(n)]
            late = time[edge.src] > time[edge.dst] + edge.distance * n
            if late and all(time[e.src] < time[e.dst] + e.distance * n for e in others.edges if e.src != e.dst):
                return timed(others, list(stages), list(order), 0)
    return None


def noticed(loop: Loop, work: KernelState, scheduled: PlannedLoop) -> bool:
    """Whether the program of this schedule does not verify, faults, or computes something else."""
    try:
        ptx = print_module(with_schedules(work, [scheduled], "emit-ptx").module)
    except InternalError as broken:
        assert "lint-warp" in str(broken), "the program verifier, and nobody before it"
        return True
    try:
        return differences(loop, work.source_kernel, ptx, None) != []
    except Fault:
        return True


def broken_edges(problem: Problem) -> Iterator[tuple[Edge, Schedule]]:
    """The edges that no others imply, each with a schedule that breaks it alone."""
    for edge in problem.edges:
        if edge.src != edge.dst and (schedule := breaking(problem, edge)) is not None:
            yield edge, schedule


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", STORAGE)
def test_every_dependence_is_needed(storage: str, target: str) -> None:
    element = STORAGE[storage]
    seen = set()
    for name, body in bodies(element).items():
        loop = kernel_of(body, element)
        kernel = tile_ir(loop)
        work, problem = with_problem(kernel, target)
        for edge, schedule in broken_edges(problem.problem):
            mutant = without(problem.problem, edge)
            assert list(find_violations(mutant, schedule)) == []
            assert any(f"({edge.why})" in v for v in find_violations(problem.problem, schedule)), (name, edge)
            assert noticed(loop, work, planned(replace(problem, problem=mutant), schedule)), (
                f"{name}: nothing shows that {edge} is broken by {schedule}"
            )
            seen.add((edge.why.split()[0], edge.distance))
    assert seen == {("data", 0), ("data", 1), ("anti", 0), ("anti", 1), ("output", 0), ("output", 1)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("late", [1, 2, 3])
def test_every_version_is_needed(late: int, target: str) -> None:
    """The reuse of a version is no edge but a depth: with one version fewer than the schedule needs, a tile is filled
    again before it is read."""
    body = ["for i, j in T.Parallel(S, S):", "    s2[i, j] = G[i, j] + X[k * 3 + i]", *read("s2[i, j]", "O")]
    loop = kernel_of(["s2 = T.alloc_shared((S, S), 'float32')", *body], "f[i, j]")
    kernel = tile_ir(loop)
    work, problem = with_problem(kernel, target)
    schedule = timed(problem.problem, [0, late], [0, 1], 0)
    # The schedule counts a reader's latency too, in which its program order already keeps what follows away.
    assert late < schedule.depth[0] <= late + 2
    too_few = replace(schedule, depth=(late,))
    assert any("needs" in v for v in find_violations(problem.problem, too_few))
    assert not noticed(loop, work, planned(problem, schedule))
    assert noticed(loop, work, planned(problem, too_few))
