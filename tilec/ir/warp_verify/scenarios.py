"""The scenarios in which the verifier runs a warp program, one for each way that its undetermined control flow may go,
and the operations that a role executes in each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping

from tilec.ir import tile, warp
from tilec.ir.warp import Operation, Program
from tilec.support.records import dataclass

ITERATION_DISTANCES = 8
"""The number of iterations for which the verifier tracks the part of a tensor that an operation reached; before that,
it may have been any part."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One choice of undetermined control flow: block indices and scalars; the trip counts of a pipeline when a role
    enters it the first time, the second time and so on, cyclically; and `taken`, whether run-time branches are taken
    and phases of loops are over (None: by the values, and taken where these do not decide; phases are then equally
    long)."""

    values: dict[str, int]
    trip_count: tuple[int, ...]
    taken: bool | None


def build_scenarios(program: Program) -> Iterator[Scenario]:
    """Yield the scenarios of a program: first and last block, short and long trip counts, branches taken, not taken, by
    value. The trip counts are all up to one more than the stages and a long one, two in turn. There is one scenario
    where nothing depends on run-time values."""
    operations = [op for role in program.roles for op in warp.walk_operations(role.body)]
    stages = [op.stages for op in operations if isinstance(op, warp.Pipeline)]
    loops = any(isinstance(op, warp.Loop) and warp.static_trip_count(op) is None for op in operations)
    branches = any(
        (isinstance(op, warp.Branch) and op.part == "") or (isinstance(op, warp.Loop) and op.phases)
        for op in operations
    )
    long = max(stages, default=0) + 2 * max((r.depth for r in program.rings), default=1) + 1
    counts = [*range(max(stages, default=0) + 2), long] if stages or loops else [long]
    for last in (False, True) if loops or branches else (False,):
        values = {p.name: 3 if last else 0 for p in program.params if isinstance(p, tile.Var)}
        for var, extent in zip(program.block_vars, program.grid, strict=False):
            values[var.name] = (extent if isinstance(extent, int) else 4) - 1 if last else 0
        for n, following in zip(counts, (*counts[1:], counts[0]), strict=True):
            for taken in (None, True, False) if branches else (None,):
                yield Scenario(values, (n, following), taken)


class _Unknown(Exception):
    """The control flow depends on data."""


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": min, "max": max, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "eq": operator.eq, "ne": operator.ne, "and": operator.and_, "bitand": operator.and_,
    "or": operator.or_, "bitor": operator.or_,
}  # fmt: skip


def _evaluate_integer(expr: tile.Expr, values: dict[str, int]) -> int:
    """Return an integer expression's value; raises `_Unknown` for unknown variables, data, other operators or a divisor
    0.
    """
    match expr:
        case tile.Const(value=value):
            return int(value)
        case tile.Var(name=name):
            if name not in values:
                raise _Unknown
            return values[name]
        case tile.Unary(op=op, a=a):
            value = _evaluate_integer(a, values)
            return -value if op == "neg" else int(not value)
        case tile.Cast(a=a):
            return _evaluate_integer(a, values)
        case tile.Select(condition=c, then=a, orelse=b):
            return _evaluate_integer(a if _evaluate_integer(c, values) else b, values)
        case tile.Binary(op=op, a=a, b=b):
            left, right = _evaluate_integer(a, values), _evaluate_integer(b, values)
            if right == 0 and op in ("floordiv", "floormod"):
                raise _Unknown  # the machine's result is unspecified, and unused
            if op not in _OPERATORS:
                raise _Unknown
            return int(_OPERATORS[op](left, right))
        case tile.Call() | tile.Ptx() | tile.Load():
            raise _Unknown


class Execution:
    """The operations of one role in the order in which a scenario executes them. Long loops skip a multiple of `period`
    iterations, the same in all roles: `skips` has the number for a role's first entry into the loop, its second and so
    on; loops over the variables `long` keep more iterations. `asked` tells whether the scenario's choices were used.
    `values` are the variables' values at the last operation."""

    def __init__(
        self, scenario: Scenario, period: int, skips: dict[tuple[str, int], int], long: frozenset[str] = frozenset()
    ) -> None:
        self.scenario = scenario
        self.period = period
        self.long = long
        self.values: Mapping[str, int] = {}
        self.skips = skips
        self.asked = False
        self.entered: dict[str, int] = {}  # number of entries, by pipeline
        self.looped: dict[str, int] = {}  # number of entries, by loop
        self.trip_count = 0  # of the innermost current pipeline
        self.stages = 0
        self.steady: tile.Var | None = None  # its variable
        self.left = False  # whether a break has left the innermost loop

    def run(self, body: tuple[Operation, ...], values: dict[str, int]) -> Iterator[Operation]:
        """Yield a body's operations in the order of execution, control flow by the scenario; sets `Let` variables in
        `values`. Control flow itself is yielded only where it reads tensors.
        """
        for op in body:
            if self.is_leaving():
                return
            if isinstance(op, warp.Let | warp.Loop | warp.Branch) and warp.scalar_reads(op):
                self.values = values
                yield op
            match op:
                case warp.Pipeline(var=var, stages=stages, body=inner):
                    entered = self.entered.get(var.name, 0)
                    self.entered[var.name] = entered + 1
                    around = self.trip_count, self.stages, self.steady
                    self.asked = True
                    self.trip_count = self.scenario.trip_count[entered % len(self.scenario.trip_count)]
                    self.stages, self.steady = stages, var
                    yield from self.run(inner, values)
                    self.trip_count, self.stages, self.steady = around
                case warp.Loop(var=var, step=step):
                    start, count = self.count(op, values)
                    step = step if op.following is None else 1
                    for k in self.iterations_to_run(var.name, count):
                        yield from self.run(self.phase(op, k, count), {**values, var.name: start + k * step})
                        if self.is_leaving():
                            break
                    self.left = False
                case warp.Forever(body=inner):
                    self.asked = True
                    for _ in range(self.scenario.trip_count[0] + 1):
                        yield from self.run(inner, values)
                        if self.is_leaving():
                            break
                    self.left = False
                case warp.Break():
                    self.left = True
                case warp.Branch(part="guard", least=least, then=then):
                    if self.trip_count >= least:
                        yield from self.run(then, values)
                case warp.Branch(then=then, orelse=orelse):
                    yield from self.run(then if self.decide(op, values) else orelse, values)
                case warp.Let(var=var, value=value):
                    try:
                        values[var.name] = _evaluate_integer(value, values)
                    except _Unknown:
                        values.pop(var.name, None)
                case _:
                    self.values = values
                    yield op

    def iterations_to_run(self, var: str, trip_count: int) -> Iterator[int]:
        """Yield the iterations to run: all of a short loop, or without a period; of a long one the first and the last.
        The number of skipped ones is kept in `self.skips` for other roles.
        """
        if not self.period:
            yield from range(trip_count)
            return
        place = var, self.looped.get(var, 0)
        self.looped[var] = place[1] + 1
        first = 2 * self.period * (-(-ITERATION_DISTANCES // self.period) if var in self.long else 1)
        skipped = self.skips.setdefault(place, max(0, trip_count - 2 * first) // self.period * self.period)
        for k in range(trip_count - skipped):
            yield k if k < first else k + skipped

    def phase(self, op: warp.Loop, iteration: int, trip_count: int) -> tuple[Operation, ...]:
        """Return the loop body that an iteration runs: the first one if branches are not taken, the last one if they
        are. Where the scenario does not decide, the phases are equally long."""
        if self.scenario.taken is not None:
            return op.bodies[-1 if self.scenario.taken else 0]
        return op.bodies[iteration * len(op.bodies) // trip_count]

    def is_leaving(self) -> bool:
        """Return whether a break is leaving the innermost loop, asked by a method because the type checker narrows
        `left`."""
        return self.left

    def count(self, op: warp.Loop, values: dict[str, int]) -> tuple[int, int]:
        """Return a loop variable's first value and trip count: of a steady state by its pipeline, else by values or
        scenario.
        """
        if op.following is not None:
            self.asked = True
            return 0, max(1, self.scenario.trip_count[0])
        if op.part == "steady" and op.var == self.steady:
            try:
                start = _evaluate_integer(op.start, values)
            except _Unknown:
                start = 0
            return start, max(0, self.trip_count - self.stages)
        try:
            trip_count = range(_evaluate_integer(op.start, values), _evaluate_integer(op.stop, values), op.step)
            return trip_count.start, len(trip_count)
        except _Unknown:
            self.asked = True
            return 0, min(self.scenario.trip_count[0], 2)

    def decide(self, op: warp.Branch, values: dict[str, int]) -> bool:
        """Return whether a branch is taken: by the scenario, else by its condition's value, True if that is unknown."""
        if self.scenario.taken is not None:
            return self.scenario.taken
        try:
            return bool(_evaluate_integer(op.condition, values))
        except _Unknown:
            return True
