"""Schedules drawn at random for the loops of `pipelines`, by a walk or as lists, and what becomes of both."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from pipelines import Loop
from stages import advanced, planned, scheduled, with_schedules, work_on

from tilec.analysis.rings import is_load
from tilec.driver import build as driver, engine
from tilec.driver.emulation import emulate
from tilec.emu import launch
from tilec.ir.elements import numpy_compute_type
from tilec.ir.manifest import manifests_in_module
from tilec.ir.tile import Buffer, Kernel, TileOp
from tilec.passes.loop.annotate import build_manual_schedule
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop, ScheduledLoop
from tilec.ptx.parse import parse_module
from tilec.ptx.text import print_module
from tilec.sched.model.roles import Roles, has_roles, resolve_roles
from tilec.sched.objective import make_schedule
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.sched.verify import find_violations
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

# ---- schedules -------------------------------------------------------------------------------------------------------

Moves = list[tuple[int, int, int]]
moves: st.SearchStrategy[Moves] = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 15), st.sampled_from([1, 1, 0, -1, 2])), min_size=12, max_size=40
)
"""Steps of a walk through the schedules of a loop: see `wander`."""


def wander(problem: Problem, steps: Moves, deeper: int) -> Schedule:
    """A schedule reached from the loop's own order by moving statements to another stage or exchanging the places of
    two, whenever every dependence lets them; rings get up to `deeper` versions more than they need.

    On the walk statement i of iteration k issues at time[i] + k·n, one statement at a time.
    """
    n = len(problem.ops)
    time = list(range(n))
    for i, j, delta in steps:
        tried = list(time)
        a, b = i % n, j % n
        if a == b:
            tried[a] += delta * n
        else:
            tried[a] += (time[b] - time[a]) % n + delta * n
            tried[b] += (time[a] - time[b]) % n
        apart = any(len({tried[op] // n for op in group}) > 1 for group in problem.same_stage)
        if not apart and all(tried[e.src] < tried[e.dst] + e.distance * n for e in problem.edges):
            time = tried
    lowest = min(time) // n
    return timed(problem, [t // n - lowest for t in time], sorted(range(n), key=lambda op: time[op] % n), deeper)


def timed(problem: Problem, stage: list[int], order: list[int], deeper: int) -> Schedule:
    """Stages and an order as start times: each statement issues when the one before it in the order has nothing more to
    issue and holds no unit, and the interval is long enough for the rest."""
    phase, free = dict.fromkeys(order, 0), 0
    for op in order:
        inside = [e for e in problem.edges if e.dst == op and stage[op] + e.distance == stage[e.src] and e.src != op]
        waits = max([0, *(-u.offset for u in problem.ops[op].uses)])  # what it holds before it issues
        phase[op] = max([free + waits, *(phase[e.src] + e.latency for e in inside)])
        free = phase[op] + max([problem.ops[op].issue, *(u.offset + u.cycles for u in problem.ops[op].uses)])
    ii = free
    for e in problem.edges:
        if crossed := stage[e.dst] + e.distance - stage[e.src]:
            ii = max(ii, -(-(phase[e.src] + e.latency - phase[e.dst]) // crossed))
    for ring in problem.rings:  # a deep enough interval for as many versions as there may be
        for p, c in itertools.product(ring.producers, ring.consumers):
            if ring.max_depth is not None and (left := ring.max_depth - (stage[c] - stage[p])) > 0:
                ii = max(ii, -(-(phase[c] + problem.ops[c].latency - phase[p]) // left))
    start = [s * ii + phase[op] for op, s in enumerate(stage)]
    tight = make_schedule(problem, ii, start, "given", order)
    depth = list(tight.depth)
    for at, ring in enumerate(problem.rings):
        room = problem.pools[ring.pool].capacity - problem.pools[ring.pool].reserved
        for _ in range(deeper):
            held = sum(r.bytes * d for r, d in zip(problem.rings, depth, strict=True)) + ring.bytes
            if held <= room and (ring.max_depth is None or depth[at] < ring.max_depth):
                depth[at] += 1
    return replace(tight, depth=tuple(depth))


PIPELINE = "for k in T.Pipelined("


@st.composite
def by_hand(draw: DrawFn, count: int) -> str:
    """Lists for a loop of `count` scheduled statements as a person might write them, right or wrong: most put a first
    part of the body some stages before the rest; some exchange two statements, or are drawn freely; some are no lists
    for this loop at all."""
    kind = draw(st.sampled_from(["first", "first", "first", "cut", "one stage", "free", "mistake"]))
    cut = 1 if kind == "first" else draw(st.integers(1, max(count - 1, 1)))
    late = 0 if kind == "one stage" else draw(st.sampled_from([1, 1, 2, 3]))
    stage: list[object] = [0 if i < cut else late for i in range(count)]
    order: list[object] = [*range(count)]
    if late and draw(st.booleans()):
        order = [(i - cut) % count for i in range(count)]  # the consumers of an earlier iteration first
    if kind == "one stage":
        i, j = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        order[i], order[j] = order[j], order[i]
    elif kind == "free":
        stage = [draw(st.integers(0, 2)) for _ in range(count)]
        order = draw(st.permutations(range(count)))
    elif kind == "mistake":
        for values in draw(st.sampled_from([(stage,), (order,), (stage, order)])):
            values[draw(st.integers(0, count - 1))] = draw(st.sampled_from([-1, 1.5, "0", True, 1 << 40, 0, 5]))
        if draw(st.booleans()):
            stage = stage[:-1] if draw(st.booleans()) else [*stage, 0]
    given = [f"stage={stage}", f"order={order}"]
    return ", ".join(given if kind != "mistake" or draw(st.booleans()) else given[:1])


def with_lists(loop: Loop, lists: str) -> Loop:
    """The loop with these lists in the head of its pipeline."""
    head = next(line for line in loop.text.splitlines() if PIPELINE in line)
    return replace(loop, text=loop.text.replace(head, f"{head.removesuffix('):')}, {lists}):"))


# ---- all the way -----------------------------------------------------------------------------------------------------


def tile_ir(loop: Loop, folded: bool = True) -> Kernel:
    source, options = SourceFile("drawn.tl", loop.text), CompileOptions()
    if folded:
        return driver.load_kernel(source, options, driver.Observer())
    (work,) = engine.read_file(source, options, driver.Observer(), is_single=True).kernels
    return work.kernel


def compiled(
    kernel: Kernel, target: str, strategy: Strategy, steps: Moves | None, deeper: int
) -> tuple[str, list[ScheduledLoop]]:
    """The PTX of the kernel and its loops with their schedules: by hand where they have one, else solved, or reached by
    a walk where `steps` are given. A schedule that does not hold, or a program that does not verify, is an error."""
    work = advanced(work_on(kernel, target, strategy, scheduler="heuristic"), "build-problems")
    if steps is None:
        work = advanced(work, "emit-ptx", behind="build-problems")
        return print_module(work.module), scheduled(work)
    decided: list[PlannedLoop] = []
    while len(work.loops) > len(
        decided
    ):  # of nested loops the inner ones first, and the next problem follows from them
        loop = work.loops[len(decided)].loop
        decided.append(planned(loop, walked(loop, steps, deeper)))
        work = advanced(replace(work, loops=tuple(decided)), "build-problems", behind="choose-stages-by-occupancy")
    known = {id(one.loop): one for one in decided}
    loops = [known.get(id(loop)) or planned(loop, walked(loop, steps, deeper)) for loop in work.problems]
    work = with_schedules(work, loops, "emit-ptx")
    return print_module(work.module), scheduled(work)


def computed_versions(scheduled: ScheduledLoop) -> int:
    """The most versions of a tile that no single copy from a tensor fills."""
    plans = zip(scheduled.loop.rings, scheduled.schedule.depth, strict=True)
    statements = scheduled.loop.statements
    loads = [isinstance(s, TileOp) and is_load(s) for s in statements]
    return max(
        (depth for plan, depth in plans if len(plan.producers) > len(plan.buffers) or not loads[plan.producers[0]]),
        default=0,
    )


def divided(problem: Problem, steps: Moves) -> Roles:
    """A role for each statement that is to have one, as the steps of a walk say; tied ones have the same."""
    if not has_roles(problem):
        return ()
    at = {op: of[0] for of in problem.tied for op in of}
    said = [steps[at.get(op, op) % len(steps)][0] if steps else 0 for op in range(len(problem.ops))]
    return tuple(
        spec.roles[number % len(spec.roles)] if spec.roles else None
        for spec, number in zip(problem.ops, said, strict=True)
    )


def walked(loop: LoopProblem, steps: Moves, deeper: int) -> Schedule:
    """By hand where the loop has one, else reached by a walk."""
    if (by_hand := build_manual_schedule(loop)) is not None:
        broken = list(find_violations(loop.problem, by_hand))
        assert not broken, broken[0]
        return by_hand
    role = divided(loop.problem, steps)
    plain = resolve_roles(loop.problem, role)
    schedule = replace(wander(plain, steps, deeper), role=role)
    if list(find_violations(loop.problem, schedule)):  # num_stages is too small for the walk's end
        schedule = replace(wander(plain, [], 0), role=role)
    broken = list(find_violations(loop.problem, schedule))
    assert not broken, broken[0]
    return schedule


def arguments(kernel: Kernel, loop: Loop) -> emulate.KernelArguments:
    """Small integers everywhere, outputs included, so that what must not be written is seen to be."""
    generator = np.random.default_rng(len(loop.text))
    made = emulate.KernelArguments({}, {"n": loop.n, "first": loop.first})
    for param in kernel.params:
        if isinstance(param, Buffer):
            low = 0 if param.name == "Ids" else -2
            made.tensors[param.name] = generator.integers(low, 3, param.shape).astype(numpy_compute_type(param.dtype))
    made.tensors["Ends"][:] = loop.first + loop.n
    return made


def differences(loop: Loop, kernel: Kernel, ptx: str, adversary: int | None) -> list[str]:
    """Where the emulated PTX leaves other tensors than the unpipelined loop does. Raises the emulator's `Fault`."""
    (manifest,) = manifests_in_module(parse_module(ptx))
    found = arguments(kernel, loop)
    expected = found.copy()
    launch(
        ptx,
        manifest.entry,
        manifest.grid,
        manifest.block,
        emulate.build_launch_arguments(manifest, found),
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    emulate.run_reference(kernel, expected)
    results = emulate.compare_arguments(kernel, manifest, found, expected)
    return [f"{r.name}{list(r.worst)} is {r.found}, not {r.expected} ± {r.allowed}" for r in results if not r.matches]
