"""Pipelines run abstractly: every statement once per iteration, in the schedule's order, on the right versions.

The programs' control flow is followed here with a little interpreter of its own; what their statements compute is left
to the emulator.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from building import build_source, outcome
from evaluation import evaluate
from stages import advanced, problems, work_on

from tilec.ir import warp
from tilec.ir.tile import For, Kernel, Store, int32_const
from tilec.ir.warp_verify.verify import program_violations
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.loop.describe import describe_statement
from tilec.passes.loop.pools import compute_register_split
from tilec.sched.schedule import Schedule
from tilec.support.options import Strategy
from tilec.support.source import SourceFile
from tilec.target import table as targets

Make = Callable[..., Kernel]

# The statements stand on lines 12 to 15 and show their iteration in what they address.
TEXT = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined({bounds}, {options}):
    row = k * 64
    tail = row + 7
    T.copy(A[row, 0], s)
    T.copy(B[row, 0], t)
    T.gemm(s, t, c)
    T.copy(c, C[tail, 0])
"""
LINES = {12: "s", 13: "t", 14: "gemm", 15: "out"}
PARAMS = (
    'A: T.Tensor((512, 64), "float16"), B: T.Tensor((512, 64), "float16"), '
    'C: T.Tensor((512, 66), "float32"), n: T.int32'
)

STATEMENTS = (warp.CpAsync, warp.TmaLoad, warp.Mma, warp.Wgmma, warp.Elementwise)

FORMS: list[tuple[str, Strategy]] = [("sm_80", "auto"), ("sm_90a", "unspecialize"), ("sm_90a", "auto")]
forms = pytest.mark.parametrize(("target", "strategy"), FORMS, ids=str)


def programs(
    body: Make, bounds: str, options: str, target: str, strategy: Strategy, step: int = 1
) -> tuple[LoopProblem, Schedule, warp.Program]:
    made = body(TEXT.format(bounds=bounds, options=options).replace("k * 64", f"k // {step} * 64"), PARAMS)
    made = replace(made, body=tuple(replace(s, step=step) if isinstance(s, For) else s for s in made.body))
    work = advanced(work_on(made, target, strategy), "lint-warp")
    assert list(program_violations(work.program)) == []
    (planned,) = work.loops
    return planned.loop, planned.solution.schedule, work.program


# ---- the interpreter -------------------------------------------------------------------------------------------------


def trace(body: tuple[warp.Operation, ...], values: dict[str, int]) -> Iterator[tuple[warp.Operation, dict[str, int]]]:
    """Every simple operation in order of execution, with the variables' values at that time."""
    for op in body:
        match op:
            case warp.Loop():
                for value in range(evaluate(op.start, values), evaluate(op.stop, values), op.step):
                    yield from trace(op.body, {**values, op.var.name: value})
            case warp.Pipeline(body=inner):
                yield from trace(inner, values)
            case warp.Branch():
                yield from trace(op.then if evaluate(op.condition, values) else op.orelse, values)
            case _:
                yield op, values


def iteration(op: warp.Operation, values: dict[str, int]) -> int | None:
    """Which iteration the tensor rows that an operation addresses belong to."""
    match op:
        case warp.CpAsync(source=region):
            return int(evaluate(region.start[0], values)) // 64
        case warp.TmaLoad(start=start):
            return int(evaluate(start[0], values)) // 64
        case warp.Elementwise(nest=nest) if isinstance(store := nest.body[0], Store):
            return int(evaluate(store.indices[0], {**values, **{v.name: 0 for v in nest.vars}})) // 64
        case _:
            return None


def check(
    loop: LoopProblem,
    schedule: Schedule,
    program: warp.Program,
    values: dict[str, int],
    trip_count: int,
    first: int = 0,
) -> None:
    """`first` is the loop variable's first value; iterations are counted from it."""
    for role in program.roles:
        position: Counter[str] = Counter()
        ran: dict[str, list[int]] = defaultdict(list)
        times: dict[str, list[int]] = defaultdict(list)
        met: Counter[type[warp.Operation]] = Counter()
        for time, (op, now) in enumerate(trace(role.body, dict(values))):
            met[type(op)] += 1
            if isinstance(op, warp.Advance):
                position[op.cursor.name] += 1
            name = LINES.get(op.span.line)
            if name is None or not isinstance(op, STATEMENTS):
                continue
            # A product says nothing of its iteration but through the versions it takes.
            k = iteration(op, now)
            ran[name].append(len(ran[name]) if k is None else k - first)
            times[name].append(time)
            for cursor in op.cursors:
                assert position[cursor.name] == ran[name][-1], f"{name} of iteration {k} is at version {cursor}"
        mine = {LINES[s.span.line] for s, r in zip(loop.statements, loop.roles, strict=True) if r == role.name}
        assert ran.keys() == (mine if trip_count else set())
        for name in ran:
            assert ran[name] == list(range(trip_count)), f"{role.name}: {name} runs for iterations {ran[name]}"
        for name, count in position.items():
            assert count == trip_count, f"{name} is advanced {count} times in {trip_count} iterations"
        fed = trip_count if any(ring.has_barriers for ring in program.rings) else 0
        assert met[warp.RingAcquire] == (fed if role.name != "consumer" else 0)
        assert met[warp.RingWait] == met[warp.RingRelease] == (fed if role.name != "producer" else 0)
        respects_dependences(loop, times)
        if program.roles[0].body and "n" not in values:
            in_order(loop, schedule, times)


def respects_dependences(loop: LoopProblem, times: dict[str, list[int]]) -> None:
    for edge in loop.problem.edges:
        before, after = (LINES[loop.statements[op].span.line] for op in (edge.src, edge.dst))
        for k, time in enumerate(times.get(before, ())):
            later = times.get(after, [])[k + edge.distance : k + edge.distance + 1]
            assert all(time < t for t in later), f"{after} of {k + edge.distance} comes before {before} of {k}"


def in_order(loop: LoopProblem, schedule: Schedule, times: dict[str, list[int]]) -> None:
    """Of two statements of one role, that of the iteration that the schedule starts first is issued first."""
    op_of = {LINES[s.span.line]: i for i, s in enumerate(loop.statements)}
    place_of = {op: k for k, op in enumerate(schedule.order)}
    for a, b in itertools.permutations(times, 2):
        for i, j in itertools.product(range(len(times[a])), range(len(times[b]))):
            first = (schedule.stage[op_of[a]] + i, place_of[op_of[a]])
            second = (schedule.stage[op_of[b]] + j, place_of[op_of[b]])
            assert (first < second) == (times[a][i] < times[b][j]), f"{a} of {i} and {b} of {j}"


# ---- trip counts and stages ------------------------------------------------------------------------------------------

SCHEDULES = {
    "solved, 1 stage": "num_stages=1",
    "solved, 3 stages": "num_stages=3",
    "all in one": "stage=[0, 0, 0, 0], order=[0, 1, 2, 3]",
    "one ahead": "stage=[0, 0, 1, 1], order=[0, 1, 2, 3]",
    "loads after use": "stage=[0, 0, 1, 1], order=[2, 3, 0, 1]",
    "one each": "stage=[0, 1, 2, 3], order=[3, 2, 1, 0]",
    "far ahead": "stage=[0, 0, 3, 3], order=[1, 0, 2, 3]",
}
schedules = pytest.mark.parametrize("options", SCHEDULES.values(), ids=SCHEDULES.keys())


@forms
@schedules
def test_trip_counts_known_in_advance(body: Make, options: str, target: str, strategy: Strategy) -> None:
    for trip_count in range(1, 6):
        loop, schedule, program = programs(body, str(trip_count), options, target, strategy)
        check(loop, schedule, program, {}, trip_count)


@forms
@schedules
@pytest.mark.parametrize("bounds", ["n", "bx, n + bx"])
def test_trip_counts_known_at_run_time(body: Make, options: str, bounds: str, target: str, strategy: Strategy) -> None:
    loop, schedule, program = programs(body, bounds, options, target, strategy)
    for trip_count in range(-1, 6):
        check(loop, schedule, program, {"n": trip_count, "bx": 2}, max(trip_count, 0), 2 if "bx" in bounds else 0)


@forms
@pytest.mark.parametrize("trip_count", range(1, 6))
def test_a_step(body: Make, target: str, strategy: Strategy, trip_count: int) -> None:
    """Iterations are counted, not values: every third row of tiles, an end that no step reaches exactly."""
    stop = 3 * trip_count - 1
    for bounds, values in ((str(stop), {}), ("n", {"n": stop})):
        loop, schedule, program = programs(body, bounds, "num_stages=3", target, strategy, 3)
        check(loop, schedule, program, values, trip_count)


@forms
def test_trip_counts_do_not_unroll_the_steady_state(body: Make, target: str, strategy: Strategy) -> None:
    """However often the loop runs, the program is as long."""
    _, schedule, short = programs(body, "7", SCHEDULES["one each"], target, strategy)
    _, _, long = programs(body, "1000", SCHEDULES["one each"], target, strategy)
    sizes = [sum(1 for role in p.roles for _ in warp.walk_operations(role.body)) for p in (short, long)]
    assert sizes[0] == sizes[1]
    if strategy == "unspecialize":
        (role,) = short.roles
        (steady,) = (op for op in role.body if isinstance(op, warp.Loop))
        # One iteration fewer overlaps than there are stages: it begins where no product is in flight
        # (`loop.rotate_loop`).
        assert (steady.part, steady.start) == ("steady", int32_const(max(schedule.stage) - 1))


# ---- the rest of the program -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", range(1, 8))
def test_registers_are_shared_out_among_the_warpgroups(groups: int) -> None:
    """Multiples of 8 that setmaxnreg takes, together no more than the block starts with, the same for each thread."""
    few, many = compute_register_split(groups, targets.load_target("sm_90a"))
    assert few % 8 == many % 8 == 0 and 24 <= few <= many <= 240
    at_launch = 65536 // (128 * (groups + 1)) // 8 * 8
    assert few + groups * many <= (groups + 1) * at_launch


@pytest.mark.parametrize(("groups", "split"), [(1, (40, 240)), (2, (24, 240)), (3, (32, 160))])
def test_a_producer_has_what_the_consumers_cannot_take(groups: int, split: tuple[int, int]) -> None:
    """Consumers come first; what their steps of eight and the limit of 240 leave over, the producer keeps."""
    assert compute_register_split(groups, targets.load_target("sm_90a")) == split


def whole(text: str, params: str) -> str:
    """A file with one kernel of one block, that has these lines."""
    lines = "".join(f"        {line}\n" for line in text.strip().split("\n"))
    head = "import tilelang.language as T\n@T.prim_func\n"
    return f"{head}def kernel({params}):\n    with T.Kernel(1, threads=128) as bx:\n{lines}"


NESTED = """
a = T.alloc_shared((64, 64), "float16")
b = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
{loop}
    T.clear(c)
    for k in T.Pipelined(4, num_stages=2):
        T.copy(A[r * 64, k * 64], a)
        T.copy(B[k * 64, 0], b)
        {body}
    T.copy(c, C[r * 64, 0])
"""


@forms
@pytest.mark.parametrize(
    ("loop", "inside"),
    [
        ("for r in T.unroll(2):", "T.gemm(a, b, c)"),
        ("for r in T.Pipelined(2, num_stages=2):", "T.gemm(a, b, c)"),
        ("for r in T.serial(2):", "if k % 2 == r:\n            T.gemm(a, b, c)"),
        ("for r in T.serial(2):", "for again in T.unroll(2):\n            T.gemm(a, b, c)"),
    ],
    ids=["in an unrolled loop", "in a pipelined loop", "around a branch", "around an unrolled loop"],
)
def test_pipelines_among_other_loops(loop: str, inside: str, target: str, strategy: Strategy) -> None:
    params = 'A: T.Tensor((128, 256), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((128, 64), "float32")'
    text = whole(NESTED.format(loop=loop, body=inside), params)
    made = build_source(SourceFile("kernel.tl", text), target, strategy)
    assert len(made.schedules) == (2 if "Pipelined" in loop else 1)
    assert outcome(made, made.program, target) == ""


@forms
def test_a_store_that_becomes_two_statements_keeps_its_manual_place(target: str, strategy: Strategy) -> None:
    """An accumulator leaves through a staging tile: both halves take the stage and the place of the copy."""
    text = (
        TEXT.replace("    row = k * 64\n    tail = row + 7\n", "")
        .format(bounds="8", options="stage=[0, 0, 1, 1, 1], order=[3, 4, 0, 1, 2]")
        .replace("    T.gemm(", "    T.clear(c)\n    T.gemm(")
    )
    # Without binds, so that the rows stored in each iteration are seen to be others.
    text = text.replace("row", "k * 64").replace("tail", "k * 64")
    source = whole(
        text, 'A: T.Tensor((512, 64), "float16"), B: T.Tensor((512, 64), "float16"), C: T.Tensor((519, 64), "float32")'
    )
    made = build_source(SourceFile("kernel.tl", source), target, strategy)
    assert made.schedules[0].stage == (0, 0, 1, 1, 1) + (1,) * (target == "sm_90a")
    assert outcome(made, made.program, target) == ""


def test_a_value_that_the_loop_changes_is_not_read_again(body: Make) -> None:
    """A bind that reads what the loop writes has its value at one time: who uses it works on the same iteration."""
    text = 's = T.alloc_shared((64,), "float32")\nfor k in T.Pipelined(8):\n    v = X[k]\n    T.copy(X[0], s)\n'
    made = body(f"{text}    for i in T.Parallel(64):\n        X[i] = s[i] + v", 'X: T.Tensor((64,), "float32")')
    (loop,) = problems(made, "sm_80").problems
    assert loop.problem.same_stage == ((0, 2),)
    assert [describe_statement(s) for s in loop.statements] == ["bind v", "copy X → s", "parallel X"]
