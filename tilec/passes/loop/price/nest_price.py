"""Demands of elementwise nests on the machine: memory accesses, special functions, other operations.

They are counted as the assembler leaves them. A value that is the same along a row or column is computed once, and
loaded once where the nest stores to registers alone, or to other tensors. Negation is free: float operations take
negated operands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilec.analysis.usage import list_expressions
from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ops.lowering import Demand, list_load_demands, list_store_demands, make_demand
from tilec.ptx import snippet

TRANSCENDENTAL = frozenset({
    "exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sinh", "cosh", "tanh", "sigmoid",
    "sin", "cos", "tan", "atan", "erf", "pow", "fmod",
})  # fmt: skip

SUBNORMAL_EXP2 = 3
"""Extra operations of ex2.approx without .ftz, as the assembler emits them: a comparison, and two products."""

SCALED_FAST = frozenset({"fast_exp", "fast_exp10", "fast_log", "fast_log10"})
"""Approximations that are an instruction to base 2 and a multiplication; the others are an instruction alone."""


def count_nest_demands(nest: tile.Parallel, layout: Fragment, threads: int, fast_math: bool) -> list[Demand]:
    """Return the demands of a nest, run by `threads` together: its loads, stores, special functions and operations."""
    stored = [s.buffer for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store)]
    in_registers = all(buffer.in_registers for buffer in stored)
    elements = math.prod(nest.extents)
    offsets = [layout.register_offset(register) for register in range(layout.register_count)]
    found: list[Demand] = []
    operations = special = 0
    for stmt in tile.walk_statements(nest.body):
        for expr in list_expressions(stmt):
            for e in _find_per_element_parts(expr, nest):
                match e:
                    case tile.Load(buffer=buffer):
                        stays = in_registers or (buffer.scope == "global" and buffer not in stored)
                        count = _count_distinct_loads(e, nest, offsets) * threads if stays else elements
                        found += list_load_demands(buffer, min(count, elements) * buffer.dtype.bytes, threads)
                    case tile.Call(fn=fn) if fn.startswith("fast_"):
                        special += 1
                        operations += fn in SCALED_FAST
                    case tile.Call(fn=fn) if fn in TRANSCENDENTAL:
                        special += 1
                        operations += SUBNORMAL_EXP2 if fn == "exp2" and not fast_math else 0
                    case tile.Ptx(text=text, args=args):
                        written = snippet.parse_snippet(text, len(args))
                        special += written.special
                        operations += len(written.instructions) - written.special
                    case tile.Unary(op="neg", dtype=dtype) if dtype.is_float:
                        pass
                    case tile.Unary() | tile.Binary() | tile.Cast() | tile.Select() | tile.Call():
                        operations += 1
        if isinstance(stmt, tile.Store):
            found += list_store_demands(stmt.buffer, elements * stmt.buffer.dtype.bytes, threads)
    if special:
        found.append(make_demand("mufu", elements=elements * special))
    found.append(make_demand("elementwise", ops=max(operations, 1), elements=elements, threads=threads))
    return found


def _find_per_element_parts(expr: tile.Expr, nest: tile.Parallel) -> Iterator[tile.Expr]:
    """Yield the subexpressions whose value differs for each element of the nest, and all loads."""
    if isinstance(expr, tile.Load) or is_per_element(expr, nest):
        yield expr
    for part in tile.direct_operands(expr):
        yield from _find_per_element_parts(part, nest)


def _count_distinct_loads(load: tile.Load, nest: tile.Parallel, offsets: Sequence[tuple[int, ...]]) -> int:
    """Return how many different elements one thread loads: distinct values of the nest variables in the indices.

    `offsets` are those of its registers' elements.
    """
    defined = {stmt.var: stmt.value for stmt in tile.walk_statements(nest.body) if isinstance(stmt, tile.Bind)}
    used: set[tile.Var] = set()
    pending: list[tile.Expr] = [load]
    while pending:
        new = {e for e in tile.walk_expr(pending.pop()) if isinstance(e, tile.Var)} - used
        used |= new
        pending += (defined[var] for var in new if var in defined)
    dims = [dim for dim, var in enumerate(nest.vars) if var in used]
    return len({tuple(offset[dim] for dim in dims) for offset in offsets})


def is_per_element(expr: tile.Expr, nest: tile.Parallel) -> bool:
    """Return whether the expression depends on every variable of the nest."""
    return {*nest.vars} <= {e for e in tile.walk_expr(expr) if isinstance(e, tile.Var)}
