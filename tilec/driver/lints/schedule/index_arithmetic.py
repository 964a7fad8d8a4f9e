"""address-latency: address arithmetic makes the compute side look long, and so hides that loads need more stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tilec.analysis.rings import is_load
from tilec.analysis.usage import list_expressions
from tilec.driver.lints.registry import SCHEDULE, register_lint
from tilec.ir import tile
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.loop.price.nest_price import is_per_element
from tilec.passes.loop.price.statement_price import is_asynchronous
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label
from tilec.target.table import Target

# Instructions of an integer division: by a constant a multiplication by its reciprocal, else a full division.
_DIVIDE_BY_CONSTANT, _DIVIDE_BY_VALUE = 6, 20


@register_lint(SCHEDULE, "address-latency")
def find_long_address_arithmetic(work: KernelState) -> Iterator[Diagnostic]:
    """Yield the warnings of each loop."""
    for planned in work.loops:
        yield from _find_inflating_statements(planned.loop, work.assignment, work.target)


def _find_inflating_statements(loop: LoopProblem, assignment: LayoutAssignment, target: Target) -> Iterator[Diagnostic]:
    """Yield warnings for statements whose index arithmetic lowers the stages of the roofline, ⌈memory / compute⌉."""
    ops = list(zip(loop.statements, loop.problem.ops, strict=True))
    memory = max((op.latency for stmt, op in ops if _is_tile_load(stmt)), default=0)
    compute = sum(
        op.issue if not is_asynchronous(stmt) else _find_longest_use(op.uses)
        for stmt, op in ops
        if not _is_tile_load(stmt)
    )
    for stmt, op in ops:
        if not isinstance(stmt, tile.Parallel):
            continue
        work = sum(
            _count_index_instructions(index, stmt)
            for s in tile.walk_statements(stmt.body)
            for index in _list_indices(s)
        )
        elements, threads = math.prod(stmt.extents), assignment.kernel.threads
        spent = target.price("elementwise", ops=work, elements=elements, threads=threads).issue if work else 0
        # The schedule prices an operation as one instruction, so the extra cost of divisions is added.
        inflated = max(compute - op.issue, 0) + max(op.issue, spent)
        # Without index arithmetic the other work remains, at least the loads and stores.
        honest = max(inflated - spent, op.issue, 1)
        if math.ceil(memory / max(inflated, 1)) < math.ceil(memory / honest) and 2 * spent >= op.issue:
            yield Diagnostic(
                "address-latency",
                "computing addresses takes longer than the work on the data",
                Label(stmt.span, f"{spent} cycles of index arithmetic in each iteration"),
                notes=(
                    f"with it, {math.ceil(memory / max(inflated, 1))} stages seem enough to hide {memory} cycles of "
                    f"loading; without it {math.ceil(memory / honest)}",
                ),
                help="compute the index once outside the loop, or divide by powers of two",
                severity="warning",
            )


def _is_tile_load(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and is_load(stmt)


def _find_longest_use(uses: Iterable[object]) -> int:
    return max((getattr(use, "cycles", 0) for use in uses), default=0)


def _list_indices(stmt: tile.Stmt) -> Iterator[tile.Expr]:
    if isinstance(stmt, tile.Store):
        yield from stmt.indices
    for expr in list_expressions(stmt):
        for part in tile.walk_expr(expr):
            if isinstance(part, tile.Load):
                yield from part.indices


def _count_index_instructions(index: tile.Expr, nest: tile.Parallel) -> int:
    """Count the instructions for divisions that depend on the element. Additions and scaling fold into the access's
    address; what a row or column has in common is computed once."""
    found = 0
    for part in tile.walk_expr(index):
        if isinstance(part, tile.Binary) and part.op in ("floordiv", "floormod") and is_per_element(part, nest):
            by = part.b.value if isinstance(part.b, tile.Const) else None
            is_power = isinstance(by, int) and by > 0 and by & (by - 1) == 0
            found += 0 if is_power else _DIVIDE_BY_VALUE if by is None else _DIVIDE_BY_CONSTANT
    return found
