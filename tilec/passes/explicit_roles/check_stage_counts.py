"""Check that the roles of a kernel acquire equally many stages of each pipeline.

A role that acquires more waits for ever. One that acquires fewer leaves stages that nobody waits for, into which copies
may still be in flight when the block ends.

Acquires are counted, not run: a loop whose iterations are all alike multiplies its count. Sizes known only at launch
are tried with several values. Counts differ if they do so for all of these values and depend on the same sizes: `n` and
`n + 1` differ; whether `n` and `m` do, or `n` and 8, only the launch knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from tilec.ir import tile
from tilec.ir.operations.interfaces import PipelineEnd
from tilec.ir.types import INT32
from tilec.passes.explicit_roles import known_values
from tilec.passes.explicit_roles.protocol import ASSUMED_SIZE, list_checkable_roles
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.support.diagnostics import ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_SIZE_FACTORS = (2, 7)
_MAX_ITERATIONS = 10_000
"""The most iterations that are followed one by one, in loops whose iterations differ."""


@dataclass(frozen=True, slots=True)
class _StageCount:
    """The number of stages of a pipeline that a role acquires on one side of it, for each tried choice of sizes, and
    the place. `sizes` are the sizes that the number depends on."""

    role: str
    side: str
    stages: tuple[int, ...]
    sizes: frozenset[tile.Var]
    span: Span


def check_stage_counts(kernel: tile.Kernel, assignment: LayoutAssignment, mistakes: ErrorCollector) -> None:
    """Refuse a kernel whose roles acquire different numbers of stages of one pipeline in the grid's first or last
    block.

    Errors: `unbalanced-acquires`."""
    roles = list_checkable_roles(assignment, mistakes)
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    for block_name, block in _find_outermost_blocks(kernel):
        found: dict[str, list[_StageCount]] = {}
        for role in roles:
            for pipeline, count in _count_acquires(role, block, scalars):
                found.setdefault(pipeline, []).append(count)
        for pipeline, counts in found.items():
            _check_pipeline(pipeline, counts, block_name, scalars)


def _find_outermost_blocks(kernel: tile.Kernel) -> Iterator[tuple[str, known_values.Values]]:
    """Yield the indices of the grid's first block and, if they are known and differ, of its last, each with its
    name."""
    first = dict.fromkeys(kernel.block_vars, 0)
    yield "the first", first
    last = {v: e - 1 for v, e in zip(kernel.block_vars, kernel.grid, strict=False) if isinstance(e, int)}
    if len(last) == len(first) and last != first:
        yield "the last", last


def _check_pipeline(pipeline: str, counts: Sequence[_StageCount], block_name: str, scalars: Sequence[tile.Var]) -> None:
    """Refuse a pipeline for which two roles' stage counts differ for all tried sizes, blaming the minority's count.
    Of two equally common counts the smaller is blamed."""
    agreeing = Counter(count.stages for count in counts)
    ranked = sorted(counts, key=lambda count: -agreeing[count.stages])
    different = [c for c in counts if _always_differ(c, ranked[0])]
    if not different:
        return
    blamed = different[0]
    if agreeing[blamed.stages] == agreeing[ranked[0].stages]:
        blamed = min((*different, ranked[0]), key=lambda c: c.stages[0])
    majority = next(count for count in ranked if _always_differ(count, blamed))
    others = [c for c in counts if c is not blamed]
    does, are = ("fills", "taken") if blamed.side == "producer" else ("takes", "filled")
    if majority.side == blamed.side:
        are = "filled" if blamed.side == "producer" else "taken"
    sizes = [var for var in scalars if var in blamed.sizes]
    where = "".join(f", where {var.name} = {ASSUMED_SIZE:,}" for var in sizes)
    raise_error(
        "unbalanced-acquires",
        f"{blamed.role} {does} {_format_stages(blamed)} of {pipeline}, but {majority.stages[0]:,} are {are}",
        blamed.span,
        _describe_count(blamed),
        secondary=tuple(Label(c.span, _describe_count(c)) for c in others),
        notes=(f"counted in {block_name} block of the grid{where}",),
        help="give all roles of a pipeline the same number of iterations; compare the bounds of their loops",
    )


def _always_differ(one: _StageCount, other: _StageCount) -> bool:
    """Return whether two counts differ for every tried choice of sizes, and depend on the same sizes."""
    return one.sizes == other.sizes and all(a != b for a, b in zip(one.stages, other.stages, strict=True))


def _format_stages(count: _StageCount) -> str:
    return f"{count.stages[0]:,} stage{'s' * (count.stages[0] != 1)}"


def _describe_count(count: _StageCount) -> str:
    return f"{count.role} {'fills' if count.side == 'producer' else 'takes'} {_format_stages(count)}"


def _count_acquires(
    role: RoleAssignment, block: known_values.Values, scalars: Sequence[tile.Var]
) -> Iterator[tuple[str, _StageCount]]:
    """Yield a role's stage count for each end of a pipeline that it acquires; nothing where loops depend on data."""
    places: dict[PipelineEnd, Span] = {}
    for stmt in tile.walk_statements(role.kernel.body):
        if isinstance(stmt, tile.TileOp) and stmt.acquires:
            places.setdefault(stmt.acquires, stmt.span)
    if not places:
        return
    try:
        majority = dict.fromkeys(scalars, ASSUMED_SIZE)
        first = _count_in_role(role, block | majority)
        tried = {
            var: _count_in_role(role, block | majority | {var: ASSUMED_SIZE * _SIZE_FACTORS[0]}) for var in scalars
        }
        tallies = [
            first,
            *tried.values(),
            *(_count_in_role(role, block | dict.fromkeys(scalars, ASSUMED_SIZE * t)) for t in _SIZE_FACTORS),
        ]
    except known_values.UnknownValue:
        return
    for acquires, span in places.items():
        pipeline, side = acquires
        sizes = frozenset(var for var, tally in tried.items() if tally[acquires] != first[acquires])
        yield pipeline, _StageCount(role.name, side, tuple(t[acquires] for t in tallies), sizes, span)


def _count_in_role(role: RoleAssignment, values: Mapping[tile.Var, int]) -> Counter[PipelineEnd]:
    """Return how many stages a role acquires for these values of its variables, by pipeline and side."""
    counts: Counter[PipelineEnd] = Counter()
    _AcquireCounter().count_body(role.kernel.body, dict(values), counts)
    return counts


class _AcquireCounter:
    """Counts acquires. `iterations` are those followed one by one so far."""

    def __init__(self) -> None:
        self.iterations = 0

    def count_body(
        self, body: tuple[tile.Stmt, ...], values: known_values.Values, counts: Counter[PipelineEnd]
    ) -> None:
        """Add the statements' acquires to `counts` and update `values`; raise `UnknownValue` or, at a break,
        `LoopLeft`."""
        for stmt in body:
            match stmt:
                case tile.For(body=inner) if _affects_counts(inner):
                    self.count_loop(stmt, values, counts)
                case tile.If(condition=condition, then=then, orelse=orelse) if _affects_counts((*then, *orelse)):
                    self.count_body(then if known_values.evaluate_known(condition, values) else orelse, values, counts)
                case tile.While(body=inner) if _affects_counts(inner):
                    raise known_values.UnknownValue
                case tile.Break():
                    raise known_values.LoopLeft
                case _:
                    known_values.update_values(stmt, values)
                    if isinstance(stmt, tile.TileOp) and stmt.acquires:
                        counts[stmt.acquires] += 1

    def count_loop(self, loop: tile.For, values: known_values.Values, counts: Counter[PipelineEnd]) -> None:
        """Add a loop's acquires to `counts`: one iteration's times the trip count, or one by one where they differ.
        Updates `values`."""
        iterations = known_values.evaluate_iterations(loop, values)
        per_iteration: Counter[PipelineEnd] = Counter()
        iteration_values = {var: value for var, value in values.items() if var != loop.var}
        known_values.forget_variables(loop, iteration_values)
        try:
            self.count_body(loop.body, dict(iteration_values), per_iteration)
        except (known_values.UnknownValue, known_values.LoopLeft):
            with suppress(known_values.LoopLeft):
                for values[loop.var] in iterations:
                    self.iterations += 1
                    if self.iterations > _MAX_ITERATIONS:
                        raise known_values.UnknownValue from None
                    self.count_body(loop.body, values, counts)
            return
        for acquires, times in per_iteration.items():
            counts[acquires] += times * len(iterations)
        known_values.forget_variables(loop, values)


def _affects_counts(body: tuple[tile.Stmt, ...]) -> bool:
    """Return whether the statements acquire a pipeline stage, or have a break."""
    statements = tile.walk_statements(body)
    return any(isinstance(s, tile.Break) or (isinstance(s, tile.TileOp) and s.acquires is not None) for s in statements)
