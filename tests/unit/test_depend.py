"""Scheduling problems of small loops: which statement waits for which, from which iteration, and what is a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stages import advanced, assignment, planned, problems

from tilec.ir.tile import Kernel
from tilec.passes.loop.build_problem import LoopProblem, loops_to_schedule
from tilec.sched.check import find_problem_faults
from tilec.sched.objective import count_held_at_once, list_limited_pools, make_schedule
from tilec.sched.problem import UNLIMITED
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations
from tilec.support.diagnostics import CompileError
from tilec.support.options import EnvironmentSwitches, Strategy
from tilec.target import table as targets

Make = Callable[..., Kernel]

ROOT = Path(__file__).parents[2]
GEMM = (ROOT / "samples/gemm.tl").read_text(encoding="utf-8")
STAGED = (ROOT / "tests/kernels/staged_store.tl").read_text(encoding="utf-8")
ATTENTION = (ROOT / "tests/kernels/attention.tl").read_text(encoding="utf-8")

HEAD = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
d = T.alloc_fragment((64, 64), "float32")
"""
PARAMS = 'A: T.Tensor((512, 64), "float16"), C: T.Tensor((512, 64), "float32"), n: T.int32'


def loops(kernel: Kernel, target: str = "sm_80", strategy: Strategy = "auto") -> tuple[LoopProblem, ...]:
    found = problems(kernel, target, strategy).problems
    for loop in found:
        assert list(find_problem_faults(loop.problem)) == []
    return found


def one(body: Make, text: str, target: str = "sm_80", strategy: Strategy = "auto", after: str = "") -> LoopProblem:
    """The only pipelined loop, with this body."""
    inside = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    (loop,) = loops(body(f"{HEAD}for k in T.Pipelined(n):\n{inside}{after}", PARAMS), target, strategy)
    return loop


def edges(loop: LoopProblem) -> set[tuple[int, int, int, str]]:
    return {(e.src, e.dst, e.distance, e.why) for e in loop.problem.edges}


def rings(loop: LoopProblem) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(r.name, r.producers, r.consumers) for r in loop.problem.rings]


# ---- dependences -----------------------------------------------------------------------------------------------------


def test_a_copied_tile_is_a_ring_and_its_reuse_no_edge(body: Make) -> None:
    loop = one(body, "T.copy(A[k * 64, 0], s)\nT.gemm(s, s, c)")
    assert rings(loop) == [("s", (0,), (1,))]
    assert edges(loop) == {(0, 1, 0, "data s"), (1, 1, 1, "data c")}


def test_a_computed_tile_is_a_ring_too(body: Make) -> None:
    loop = one(body, "T.copy(c, s)\nT.gemm(s, s, d)")
    assert rings(loop) == [("s", (0,), (1,))]
    assert edges(loop) == {(0, 1, 0, "data s"), (1, 1, 1, "data d")}


def test_a_tile_without_versions_is_reused_in_place(body: Make) -> None:
    """A part of it is filled: the next to fill it waits for the readers."""
    loop = one(body, "T.copy(A[k * 64, 0], s[0:32, :])\nT.gemm(s, s, d)")
    assert rings(loop) == []
    assert edges(loop) == {(0, 0, 1, "output s"), (0, 1, 0, "data s"), (1, 0, 1, "anti s"), (1, 1, 1, "data d")}


def test_versions_are_filled_in_several_steps(body: Make) -> None:
    """The first covers the tile, the second fills a part. Within an iteration they keep their order; the next iteration
    has another version."""
    loop = one(body, "T.clear(s)\nif k < 3:\n    T.copy(A[k * 64, 0], s)\nT.gemm(s, s, c)")
    assert rings(loop) == [("s", (0, 1), (2,))]
    assert edges(loop) == {(0, 1, 0, "output s"), (0, 2, 0, "data s"), (1, 2, 0, "data s"), (2, 2, 1, "data c")}


def test_a_version_may_change_after_it_is_read(body: Make) -> None:
    """A product, another load, a change in place and a second product are all users of what the first load begins."""
    change = "for i, j in T.Parallel(64, 64):\n    s[i, j] = s[i, j] * 2.0"
    loop = one(body, f"T.copy(A[k * 64, 0], s)\nT.gemm(s, s, c)\nT.copy(A[0, 0], s)\n{change}\nT.gemm(s, s, d)")
    assert rings(loop) == [("s", (0,), (1, 2, 3, 4))]
    found = edges(loop)
    assert {(1, 2, 0, "anti s"), (2, 3, 0, "data s"), (0, 2, 0, "output s")} <= found
    assert not any(distance and why.endswith(" s") for _, _, distance, why in found)


def test_values_carried_from_iteration_to_iteration(body: Make) -> None:
    """c is cleared, added to and read: each of the three waits for the one before, and the first for the last."""
    loop = one(body, "T.clear(c)\nT.gemm(s, s, c)\nT.copy(c, C[k * 64, 0])")
    by_pair = {(src, dst, distance) for src, dst, distance, _ in edges(loop)}
    assert {(0, 1, 0), (1, 2, 0), (2, 0, 1), (2, 1, 1), (1, 0, 1), (0, 0, 1)} <= by_pair
    assert all(distance in (0, 1) for _, _, distance in by_pair)
    assert (2, 0, 0) not in by_pair and (1, 0, 0) not in by_pair


def test_a_read_before_the_write_takes_the_value_of_the_iteration_before(body: Make) -> None:
    """So one version carries it, and the copy is no ring."""
    loop = one(body, "T.gemm(s, s, c)\nT.copy(A[k * 64, 0], s)")
    assert rings(loop) == []
    assert {(0, 1, 0, "anti s"), (1, 0, 1, "data s"), (1, 1, 1, "output s")} <= edges(loop)


@pytest.mark.parametrize(
    "after", ["T.copy(s, A[0, 0])", "T.gemm(s, s, d)", "for k2 in T.serial(2):\n    T.gemm(s, s, d)"]
)
def test_a_tile_used_outside_the_loop_is_no_ring(body: Make, after: str) -> None:
    text = "T.copy(A[k * 64, 0], s)\nT.gemm(s, s, c)"
    assert rings(one(body, text, after=after)) == []
    assert rings(one(body, text, after="T.copy(c, C[0, 0])")) == [("s", (0,), (1,))]


def test_a_tile_that_nobody_reads_is_no_ring(body: Make) -> None:
    assert rings(one(body, "T.copy(A[k * 64, 0], s)\nT.gemm(t, t, c)")) == []


def test_rings_hold_what_lives_and_dies_together(body: Make) -> None:
    """Tiles with the same readers share their barriers; other readers, another ring."""
    together = "T.copy(A[k * 64, 0], s)\nT.copy(A[k * 64, 0], t)\nT.gemm(s, t, c)"
    assert rings(one(body, together)) == [("s+t", (0, 1), (2,))]
    apart = "T.copy(A[k * 64, 0], s)\nT.copy(A[k * 64, 0], t)\nT.gemm(s, s, c)\nT.gemm(s, t, d)"
    assert rings(one(body, apart)) == [("s", (0,), (2, 3)), ("t", (1,), (3,))]


def test_what_is_nested_counts_for_the_statement(body: Make) -> None:
    """A branch and a loop read and write what is inside them."""
    text = """
T.copy(A[k * 64, 0], s)
if bx > 0:
    for r in T.serial(2):
        T.gemm(s, s, c)
for i, j in T.Parallel(64, 64):
    c[i, j] = c[i, j] * 0.5
"""
    loop = one(body, text)
    assert rings(loop) == [("s", (0,), (1,))]
    assert {(0, 1, 0, "data s"), (1, 2, 0, "data c"), (2, 1, 1, "data c"), (2, 2, 1, "data c")} <= edges(loop)


def test_binds_are_not_scheduled(body: Make) -> None:
    loop = one(body, "row = k * 64\nT.copy(A[row, 0], s)\nT.gemm(s, s, c)")
    assert [op.name for op in loop.problem.ops] == ["copy A → s", "gemm s, s, c"]


def test_products_into_one_accumulator_follow_without_a_gap(body: Make) -> None:
    """The tensor core keeps their order: the second waits for the slot, not for the result."""
    loop = one(body, "T.copy(A[k * 64, 0], s)\nT.gemm(s, s, c)\nT.copy(c, C[0, 0])", "sm_90a")
    product = loop.problem.ops[1]
    latency = {(e.src, e.dst): e.latency for e in loop.problem.edges}
    assert latency[1, 1] == max(use.cycles for use in product.uses) < product.latency
    assert latency[1, 2] == product.latency


# ---- roles, slots, prices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "strategy", "roles"),
    [
        ("sm_80", "auto", ["all"] * 3),
        ("sm_90a", "unspecialize", ["all"] * 3),
        ("sm_90a", "auto", ["producer", "producer", "consumer"]),
    ],
)
def test_roles_and_their_issue_slots(kernel: Make, target: str, strategy: Strategy, roles: list[str]) -> None:
    (loop,) = loops(kernel(GEMM), target, strategy)
    problem = loop.problem
    assert list(loop.roles) == [op.role for op in problem.ops] == roles
    issue = {slot.name: i for i, slot in enumerate(problem.slots) if slot.name.startswith("issue ")}
    assert list(issue) == [f"issue ({role})" for role in dict.fromkeys(roles)]
    assert [slot.name for slot in problem.slots[: -len(issue)]] == [s.name for s in targets.load_target(target).slots]
    for op in problem.ops:
        assert {use.slot for use in op.uses if use.slot in issue.values()} == {issue[f"issue ({op.role})"]}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("text", [GEMM, ATTENTION], ids=["gemm", "attention"])
def test_everything_has_its_price(kernel: Make, text: str, target: str) -> None:
    """Every statement costs cycles, products the tensor core's time, copies the memory's."""
    (loop,) = loops(kernel(text), target)
    slots = loop.problem.slots
    for op in loop.problem.ops:
        assert op.issue >= 1 and op.latency >= op.issue
        assert all(use.cycles >= 1 for use in op.uses)
        busy = {slots[use.slot].name for use in op.uses}
        if op.name.startswith("gemm"):
            assert any("mma" in name or "tc" in name for name in busy), busy
        assert len(busy) >= 2 or not op.name.startswith(("copy K", "gemm")), op
    for edge in loop.problem.edges:
        assert edge.latency >= 1


def test_the_pool_knows_what_else_is_there(kernel: Make) -> None:
    """Two operands' versions of 16 KiB each come out of what the barriers leave: where C is staged, they are done with.
    A loop around fills them again, and they come out of what the two buffers leave that chunks are staged in."""
    (loop,) = loops(kernel(GEMM), "sm_90a")
    pool = loop.problem.pools[0]
    (ring,) = loop.problem.rings
    assert (ring.bytes, ring.max_depth) == (2 * 128 * 64 * 2, 4)
    assert pool.capacity == targets.load_target("sm_90a").limit("smem_bytes_per_cta")
    assert 0 < pool.reserved <= 1024
    (again,) = loops(kernel(STAGED), "sm_90a")
    assert 2 * 128 * 64 * 2 < again.problem.pools[0].reserved <= 2 * 128 * 64 * 2 + 1024


@pytest.mark.parametrize(
    ("target", "threads", "capacity", "carried"),
    [("sm_80", 128, 255, 64), ("sm_80", 512, 128, 16), ("sm_90a", 128, 240, 64), ("sm_90a", 256, 240, 32)],
)
def test_registers_are_those_of_a_thread_that_owns_fragments(
    kernel: Make, target: str, threads: int, capacity: int, carried: int
) -> None:
    """What is launched with, or what setmaxnreg gives to the consumers; of it an accumulator of 64 × 128 takes its
    part all the time."""
    (loop,) = loops(kernel(GEMM, threads=threads, block_M=64), target)
    pool = loop.problem.pools[1]
    assert (pool.name, pool.capacity, pool.reserved) == ("registers", capacity, 24 + carried)


def test_barriers_are_pools_too(kernel: Make) -> None:
    (loop,) = loops(kernel(GEMM), "sm_90a")
    named, mbarriers = loop.problem.pools[2:]
    assert (named.name, named.capacity, named.reserved, named.carried) == ("named_barriers", 16, 3, None)
    assert (mbarriers.name, mbarriers.capacity) == ("mbarriers", 29056)
    # Two of each version.
    depth = solve_problem(loop.problem).schedule.depth
    (held,) = (value for value in loop.problem.values if value.pool == 3)
    schedule = solve_problem(loop.problem).schedule
    assert held.amount * depth[0] == count_held_at_once(loop.problem, schedule.ii, schedule.start, 3) == 8
    (plain,) = loops(kernel(GEMM), "sm_80")
    assert [pool.name for pool in plain.problem.pools] == ["smem", "registers", "named_barriers"]
    assert plain.problem.pools[2].reserved == 1


WIDE = """
x = T.alloc_fragment((64, {width}), "float32")
y = T.alloc_fragment((64, {width}), "float32")
z = T.alloc_fragment((64, {width}), "float32")
for k in T.Pipelined(n{given}):
    T.copy(A[k * 64, 0], x)
    T.copy(x, C[k * 64, 0])
    T.copy(A[k * 64, 0], y)
    T.copy(y, C[k * 64, 0])
    T.copy(A[k * 64, 0], z)
    T.copy(z, C[k * 64, 0])
"""


def wide(body: Make, width: int, given: str = "") -> LoopProblem:
    params = f'A: T.Tensor((512, {width}), "float32"), C: T.Tensor((512, {width}), "float32"), n: T.int32'
    (loop,) = loops(body(WIDE.format(width=width, given=given), params))
    return loop


def test_fragments_that_do_not_fit_together_take_turns(body: Make) -> None:
    """128 registers each: one fits beside the 24 that a thread needs anyway, two do not."""
    problem = wide(body, 256).problem
    assert [value.amount for value in problem.values] == [128, 128, 128]
    assert list_limited_pools(problem) == (1,) and problem.pools[1].capacity == 255
    schedule = solve_problem(problem).schedule
    assert schedule.status == "optimal"
    assert count_held_at_once(problem, schedule.ii, schedule.start, 1) == 128
    free = replace(problem, pools=(problem.pools[0], replace(problem.pools[1], capacity=1000), problem.pools[2]))
    assert solve_problem(free).schedule.ii <= schedule.ii
    together = make_schedule(problem, schedule.ii, [0, schedule.ii - 1] * 3, "given")
    assert any(
        text.startswith("pool registers would hold") and "of 255" in text for text in find_violations(problem, together)
    )


def test_registers_have_no_limit_where_no_order_keeps_it(body: Make) -> None:
    """One fragment alone is too much: the assembler will spill, and say so. Nor where the schedule is given."""
    assert wide(body, 512).problem.pools[1].capacity == UNLIMITED
    given = ", stage=[0, 0, 0, 0, 0, 0], order=[0, 1, 2, 3, 4, 5]"
    assert wide(body, 256, given).problem.pools[1].capacity == UNLIMITED


def test_num_stages_bounds_the_ring(kernel: Make) -> None:
    for stages in (1, 2, 7):
        (loop,) = loops(kernel(GEMM, num_stages=stages), "sm_90a")
        assert loop.problem.rings[0].max_depth == stages


def test_a_serial_kernel_has_no_problem(kernel: Make) -> None:
    assert loops(kernel(GEMM), "sm_90a", "none") == ()
    assert loops(kernel(GEMM, num_stages=0), "sm_90a") == ()


def test_too_much_for_one_version(kernel: Make) -> None:
    made = kernel(GEMM, block_K=512)
    with pytest.raises(CompileError, match="shared-memory-overflow"):
        problems(made, "sm_80")
    (loop,) = problems(made, "sm_80", switches=EnvironmentSwitches(unlimited_smem=True)).problems
    assert loop.problem.pools[0].capacity > 1 << 30


# ---- attention -------------------------------------------------------------------------------------------------------


def test_what_attention_keeps_in_registers_for_a_part_of_its_iteration(kernel: Make) -> None:
    """Scores and the statistics of a tile; not what is carried on, nor the result."""
    (loop,) = loops(kernel(ATTENTION), "sm_90a")
    registers = [value for value in loop.problem.values if loop.problem.pools[value.pool].name == "registers"]
    assert [v.name for v in registers] == ["acc_s", "m_prev", "alpha", "row"]
    assert loop.problem.values[0].amount == 64 * 64 // 128


def test_attention_issues_the_next_scores_before_this_output(kernel: Make) -> None:
    """The overlap that experts write by hand: the next tile's QKᵀ is issued before this tile's PV."""
    (loop,) = loops(kernel(ATTENTION), "sm_90a")
    schedule = solve_problem(loop.problem).schedule
    scores, output = (i for i, op in enumerate(loop.problem.ops) if op.name.startswith("gemm"))
    assert schedule.status == "optimal"
    assert schedule.start[scores] + schedule.ii < schedule.start[output]
    assert schedule.stage[scores] < schedule.stage[output]
    assert schedule.order.index(scores) < schedule.order.index(output)


# ---- nested loops ----------------------------------------------------------------------------------------------------

NESTED = """
q = T.alloc_shared((64, 64), "float16")
for z in T.Pipelined(4{outer}):
    T.copy(A[z * 64, 0], q)
    T.clear(c)
    for k in T.Pipelined({trips}, num_stages=2):
        T.copy(A[k * 64, 0], s)
        T.gemm(s, q, c)
    T.copy(c, C[z * 64, 0])
"""


@pytest.mark.parametrize(("trips", "counted"), [("5", 5), ("500", 8), ("n", 8)])
@pytest.mark.parametrize(("target", "role"), [("sm_80", "all"), ("sm_90a", "every")])
def test_an_inner_loop_is_solved_first_and_is_a_statement_of_the_outer_one(
    body: Make, target: str, role: str, trips: str, counted: int
) -> None:
    found = problems(body(HEAD + NESTED.format(outer="", trips=trips), PARAMS), target)
    outer, inner = found.problems
    assert (inner.loop.var.name, outer.loop.var.name) == ("k", "z")
    (decided,) = found.loops
    assert decided.loop is inner
    schedule = decided.solution.schedule
    op = outer.problem.ops[2]
    once = max(start + op.latency for op, start in zip(inner.problem.ops, schedule.start, strict=True))
    assert (op.latency, outer.roles[2]) == (once + (counted - 1) * schedule.ii, role)
    issued = {outer.problem.slots[u.slot].name for u in op.uses if u.cycles == op.latency}
    assert issued == ({"issue (all)"} if role == "all" else {"issue (consumer)", "issue (producer)"})
    assert rings(outer)[0] == ("q", (0,), (2,))


def test_an_inner_loop_takes_shared_memory_first(body: Make) -> None:
    """Of what the versions of its tiles leave, the outer loop's own take theirs."""
    found = problems(body(HEAD + NESTED.format(outer="", trips="5"), PARAMS), "sm_80")
    outer, inner = found.problems
    schedule = found.loops[0].solution.schedule
    assert schedule.depth == (2,)
    deeper = replace(found, loops=(planned(inner, replace(schedule, depth=(5,))),))
    (again, _) = advanced(deeper, "build-problems", behind="choose-stages-by-occupancy").problems
    reserved = [one.problem.pools[0].reserved for one in (outer, again)]
    assert 0 <= reserved[1] - reserved[0] - 3 * 64 * 64 * 2 <= 1024  # barriers round up


def test_versions_given_by_hand_to_the_outer_loop_are_kept_for_it(body: Make) -> None:
    reserved = []
    for outer in ("", ", num_stages=4, stage=[0, 3, 3, 3], order=[0, 1, 2, 3]"):
        _, inner = problems(body(HEAD + NESTED.format(outer=outer, trips="5"), PARAMS), "sm_80").problems
        reserved.append(inner.problem.pools[0].reserved)
    assert 0 <= reserved[1] - reserved[0] - 3 * 64 * 64 * 2 <= 1024


@pytest.mark.parametrize(
    ("outer", "load", "pipelined"),
    [("", True, 2), ("", False, 1), (", num_stages=2", False, 2), (", num_stages=0", True, 1)],
)
def test_an_outer_loop_is_pipelined_if_it_loads_or_is_told_to(
    body: Make, outer: str, load: bool, pipelined: int
) -> None:
    text = NESTED.format(outer=outer, trips="5")
    if not load:
        text = text.replace("    T.copy(A[z * 64, 0], q)\n", "    T.fill(q, 1.0)\n")
    assert len(loops_to_schedule(assignment(body(HEAD + text, PARAMS), "sm_80").assignment)) == pipelined
