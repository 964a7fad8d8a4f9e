"""Check that the roles of a kernel acquire equally many stages of each pipeline.

A role that acquires more waits for ever. One that acquires fewer leaves stages that nobody waits for, into which copies
may still be in flight when the block ends.

Acquires are counted, not run: a loop whose iterations are all alike multiplies its count. Sizes known only at launch
are tried with several values. Counts differ if they do so for all of these values and depend on the same sizes: `n` and
`n + 1` differ; whether `n` and `m` do, or `n` and 8, only the launch knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tilec.ir import tile
from tilec.ir.operation_interfaces import PipelineEnd
from tilec.ir.types import INT32
from tilec.ops.barriers import AwaitBarrier
from tilec.passes.analysis.control_slice import is_variable
from tilec.passes.analysis.usage import writes
from tilec.passes.explicit_roles.known_values import Left, Unknown, Values, forget, known, set_value
from tilec.passes.explicit_roles.protocol import SIZE, Role
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

_TIMES = (2, 7)
_MOST_ITERATIONS = 10_000
"""The most iterations that are followed one by one, in loops whose iterations differ."""


@dataclass(frozen=True, slots=True)
class _Count:
    """The number of stages of a pipeline that a role acquires on one side of it, for each tried choice of sizes, and
    the place. `sizes` are the sizes that the number depends on."""

    role: str
    side: str
    stages: tuple[int, ...]
    sizes: frozenset[tile.Var]
    span: Span


def check_counts(kernel: tile.Kernel, roles: Sequence[Role]) -> None:
    """Check each pipeline in the first and the last block. Errors: `unbalanced-acquires`."""
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    for block_name, block in _blocks(kernel):
        found: dict[str, list[_Count]] = {}
        for role in roles:
            for pipeline, count in _counts(role, block, scalars):
                found.setdefault(pipeline, []).append(count)
        for pipeline, counts in found.items():
            _check(pipeline, counts, block_name, scalars)


def _blocks(kernel: tile.Kernel) -> Iterator[tuple[str, Values]]:
    """Yield the first block and, if it is known, the last: loops that depend on the block may differ there."""
    first = dict.fromkeys(kernel.block_vars, 0)
    yield "the first", first
    last = {v: e - 1 for v, e in zip(kernel.block_vars, kernel.grid, strict=False) if isinstance(e, int)}
    if len(last) == len(first) and last != first:
        yield "the last", last


def _check(pipeline: str, counts: Sequence[_Count], block_name: str, scalars: Sequence[tile.Var]) -> None:
    blamed = _blamed(counts)
    if blamed is None:
        return
    majority = next(count for count in _by_agreement(counts) if _differ(count, blamed))
    others = [c for c in counts if c is not blamed]
    does, are = ("fills", "taken") if blamed.side == "producer" else ("takes", "filled")
    if majority.side == blamed.side:
        are = "filled" if blamed.side == "producer" else "taken"
    sizes = [var for var in scalars if var in blamed.sizes]
    where = "".join(f", where {var.name} = {SIZE:,}" for var in sizes)
    fail(
        "unbalanced-acquires",
        f"{blamed.role} {does} {_stages(blamed)} of {pipeline}, of which {majority.stages[0]:,} are {are}",
        blamed.span,
        _spoken(blamed),
        secondary=tuple(Label(c.span, _spoken(c)) for c in others),
        notes=(f"so it is in {block_name} block of the grid{where}",),
        help="let every role of a pipeline make as many iterations; compare the bounds of the loops",
    )


def _blamed(counts: Sequence[_Count]) -> _Count | None:
    """Return the count that differs from the majority; of two equally common counts, the smaller."""
    majority = _by_agreement(counts)
    different = [c for c in counts if _differ(c, majority[0])]
    if not different:
        return None
    if _agreeing(counts, different[0]) == _agreeing(counts, majority[0]):
        return min((*different, majority[0]), key=lambda c: c.stages[0])
    return different[0]


def _by_agreement(counts: Sequence[_Count]) -> list[_Count]:
    return sorted(counts, key=lambda count: -_agreeing(counts, count))


def _agreeing(counts: Sequence[_Count], count: _Count) -> int:
    return sum(other.stages == count.stages for other in counts)


def _differ(one: _Count, other: _Count) -> bool:
    """Return whether two counts differ for all sizes."""
    return one.sizes == other.sizes and all(a != b for a, b in zip(one.stages, other.stages, strict=True))


def _stages(count: _Count) -> str:
    return f"{count.stages[0]:,} stage{'s' * (count.stages[0] != 1)}"


def _spoken(count: _Count) -> str:
    return f"{count.role} {'fills' if count.side == 'producer' else 'takes'} {_stages(count)}"


# ---- counting --------------------------------------------------------------------------------------------------------


def _counts(role: Role, block: Values, scalars: Sequence[tile.Var]) -> Iterator[tuple[str, _Count]]:
    """Yield a role's counts by pipeline: 0 for an acquire that it never reaches, none if its loops depend on computed
    values."""
    places: dict[PipelineEnd, Span] = {}
    for stmt in tile.walk(role.kernel.body):
        if isinstance(stmt, tile.TileOp) and (acquires := _acquires(stmt)):
            places.setdefault(acquires, stmt.span)
    if not places:
        return
    try:
        majority = dict.fromkeys(scalars, SIZE)
        first = _tally(role, block | majority)
        tried = {var: _tally(role, block | majority | {var: SIZE * _TIMES[0]}) for var in scalars}
        tallies = [first, *tried.values(), *(_tally(role, block | dict.fromkeys(scalars, SIZE * t)) for t in _TIMES)]
    except Unknown:
        return
    for acquires, span in places.items():
        pipeline, side = acquires
        sizes = frozenset(var for var, tally in tried.items() if tally[acquires] != first[acquires])
        yield pipeline, _Count(role.name, side, tuple(t[acquires] for t in tallies), sizes, span)


def _acquires(op: tile.TileOp) -> PipelineEnd | None:
    """Return the pipeline, and the side, whose stage an operation acquires."""
    return op.acquires if isinstance(op, AwaitBarrier) else None


def _tally(role: Role, values: Mapping[tile.Var, int]) -> Counter[PipelineEnd]:
    counting = _Counting()
    counting.body(role.kernel.body, dict(values), counting.counts)
    return counting.counts


class _Counting:
    def __init__(self) -> None:
        self.counts: Counter[PipelineEnd] = Counter()
        self.iterations = 0

    def body(self, body: tuple[tile.Stmt, ...], values: Values, counts: Counter[PipelineEnd]) -> None:
        """Add the acquires of the statements to `counts`, and update `values`."""
        for stmt in body:
            match stmt:
                case tile.TileOp():
                    for buffer in writes(stmt):
                        values.pop(tile.Var(buffer.name), None)
                    if acquires := _acquires(stmt):
                        counts[acquires] += 1
                case tile.Bind(var=var, value=value):
                    set_value(var, value, values)
                case tile.For(body=inner) if _matters(inner):
                    self.loop(stmt, values, counts)
                case tile.If(condition=condition, then=then, orelse=orelse) if _matters((*then, *orelse)):
                    self.body(then if known(condition, values) else orelse, values, counts)
                case tile.While(body=inner) if _matters(inner):
                    raise Unknown
                case tile.Break():
                    raise Left
                case tile.Parallel(body=(tile.Store(buffer=buffer, value=value),)) if is_variable(buffer):
                    set_value(tile.Var(buffer.name), value, values)
                case _:
                    forget(stmt, values)

    def loop(self, loop: tile.For, values: Values, counts: Counter[PipelineEnd]) -> None:
        iterations = range(known(loop.start, values), known(loop.stop, values), loop.step)
        per_iteration: Counter[PipelineEnd] = Counter()
        iteration_values = {var: value for var, value in values.items() if var != loop.var}
        forget(loop, iteration_values)
        try:
            self.body(loop.body, dict(iteration_values), per_iteration)
        except (Unknown, Left):
            self.one_by_one(loop, iterations, values, counts)
            return
        for acquires, times in per_iteration.items():
            counts[acquires] += times * len(iterations)
        forget(loop, values)

    def one_by_one(self, loop: tile.For, iterations: range, values: Values, counts: Counter[PipelineEnd]) -> None:
        for index in iterations:
            self.iterations += 1
            if self.iterations > _MOST_ITERATIONS:
                raise Unknown
            values[loop.var] = index
            try:
                self.body(loop.body, values, counts)
            except Left:
                return


def _matters(body: tuple[tile.Stmt, ...]) -> bool:
    return any(
        isinstance(s, tile.Break) or (isinstance(s, tile.TileOp) and _acquires(s) is not None) for s in tile.walk(body)
    )
