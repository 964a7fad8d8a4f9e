"""`stage=` and `order=` lists as schedules: verified, or refused with both lines of the dependence they break."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from stages import problems

from tilec.ir.tile import Kernel
from tilec.passes.loop.annotate import build_manual_schedule
from tilec.passes.loop.build_problem import LoopProblem
from tilec.sched.verify import find_violations
from tilec.support.diagnostics import CompileError

Make = Callable[..., Kernel]

# Lines 10 to 12 of the file are the statements.
TEXT = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(8, {lists}):
    T.copy(A[k * 64, 0], s)
    T.copy(A[k * 64, 0], t)
    T.gemm(s, t, c)
"""
CHAIN = """
s = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
d = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(8, {lists}):
    T.copy(A[k * 64, 0], s)
    T.clear(c)
    T.gemm(s, s, c)
    for i, j in T.Parallel(64, 64):
        d[i, j] += c[i, j]
"""
PARAMS = 'A: T.Tensor((512, 64), "float16")'


def loop(body: Make, text: str, lists: str, target: str = "sm_90a") -> LoopProblem:
    (found,) = problems(body(text.format(lists=lists), PARAMS), target).problems
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("text", "stages", "order", "depth"),
    [
        (TEXT, [0, 0, 1], [0, 1, 2], 2),
        (TEXT, [0, 0, 0], [0, 1, 2], 1),
        (TEXT, [0, 0, 0], [1, 0, 2], 1),
        (TEXT, [0, 1, 3], [2, 1, 0], 4),
        (TEXT, [0, 0, 2], [2, 0, 1], 3),
        (CHAIN, [0, 1, 1, 2], [3, 1, 2, 0], 3),
        (CHAIN, [0, 0, 0, 0], [0, 1, 2, 3], 1),
        (CHAIN, [0, 1, 1, 1], [3, 0, 1, 2], 2),
    ],
)
def test_a_legal_schedule_holds(
    body: Make, text: str, stages: list[int], order: list[int], depth: int, target: str
) -> None:
    found = loop(body, text, f"stage={stages}, order={order}", target)
    schedule = build_manual_schedule(found)
    assert schedule is not None
    assert list(find_violations(found.problem, schedule)) == []
    assert schedule.stage == tuple(stages)
    assert [order[op] for op in schedule.order] == sorted(order)
    assert schedule.status == "given"
    assert min(schedule.depth) >= depth


MADE = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(8, {lists}):
    {first}
    T.gemm(s, s, c)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "first",
    ["T.fill(s, 1.0)", "T.copy(t, s)", "for i, j in T.Parallel(64, 64):\n        s[i, j] = T.cast(k, 'float16')"],
)
@pytest.mark.parametrize(
    ("lists", "depth"),
    [
        ("stage=[0, 1], order=[0, 1]", 2),
        ("stage=[0, 1], order=[1, 0]", 2),
        ("stage=[0, 2], order=[0, 1]", 3),
        ("stage=[0, 0], order=[0, 1]", 1),
        ("stage=[1, 1], order=[0, 1]", 1),
        ("num_stages=4, stage=[0, 1], order=[0, 1]", 4),
    ],
)
def test_a_tile_that_is_computed_has_versions_where_it_passes_from_stage_to_stage(
    body: Make, first: str, lists: str, depth: int, target: str
) -> None:
    found = loop(body, MADE.replace("{first}", first), lists, target)
    schedule = build_manual_schedule(found)
    assert schedule is not None
    assert list(find_violations(found.problem, schedule)) == []
    assert schedule.depth == (depth,)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0]])
def test_steps_that_fill_a_version_keep_their_order(body: Make, order: list[int]) -> None:
    """Whatever versions there are: the load must not come before the tile is cleared."""
    text = MADE.replace("{first}", "T.clear(s)\n    if k < 5:\n        T.copy(A[k * 64, 0], s)")
    schedule = build_manual_schedule(loop(body, text, f"stage=[0, 0, 1], order={order}"))
    assert schedule is not None and schedule.depth == (2,)
    with pytest.raises(CompileError) as raised:
        build_manual_schedule(loop(body, text, "stage=[0, 0, 1], order=[1, 0, 2]"))
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, diagnostic.primary and diagnostic.primary.span.line) == ("schedule-order", 11)
    assert "overwrites s" in str(diagnostic.primary)


@pytest.mark.parametrize(
    ("text", "stages", "order", "first", "second", "said"),
    [
        (TEXT, [0, 1, 0], [0, 1, 2], 11, 12, "through t"),
        (TEXT, [1, 0, 0], [0, 1, 2], 10, 12, "through s"),
        (TEXT, [0, 0, 0], [2, 1, 0], 10, 12, "through s"),
        (CHAIN, [0, 1, 1, 2], [0, 2, 1, 3], 11, 12, "through c"),
        (CHAIN, [0, 0, 1, 1], [0, 1, 2, 3], 12, 11, "through c"),
        (CHAIN, [0, 1, 1, 2], [0, 1, 2, 3], 13, 11, "through c"),
    ],
)
def test_an_illegal_schedule_names_both_lines(
    body: Make, text: str, stages: list[int], order: list[int], first: int, second: int, said: str
) -> None:
    found = loop(body, text, f"stage={stages}, order={order}")
    with pytest.raises(CompileError) as raised:
        build_manual_schedule(found)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "schedule-order"
    assert said in diagnostic.title
    assert diagnostic.primary is not None
    assert (diagnostic.secondary[0].span.line, diagnostic.primary.span.line) == (first, second)


def test_without_lists_the_solver_decides(body: Make) -> None:
    assert build_manual_schedule(loop(body, TEXT, "num_stages=2")) is None


def test_every_list_of_small_stages_is_refused_or_holds(body: Make) -> None:
    """No list of stages and order passes that the verifier would not pass."""
    legal = 0
    for stages in itertools.product(range(3), repeat=3):
        for order in itertools.permutations(range(3)):
            found = loop(body, TEXT, f"stage={list(stages)}, order={list(order)}")
            try:
                schedule = build_manual_schedule(found)
            except CompileError:
                continue
            legal += 1
            assert schedule is not None and list(find_violations(found.problem, schedule)) == []
            assert max(schedule.stage) - min(schedule.stage) == max(stages) - min(stages)
    assert legal == sum(
        all((stages[i], order[i]) < (stages[2], order[2]) for i in (0, 1))
        for stages in itertools.product(range(3), repeat=3)
        for order in itertools.permutations(range(3))
    )
