"""What an elementwise nest asks of the machine: accesses to memory, functions of the special unit, other operations.

Counted as the assembler leaves them: what the same in a row or column it computes once, and loads once where the nest
stores to registers alone; with fast math a product that is added to something is one operation with the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ops.lowering import Demand, demand, loaded, stored
from tilec.passes.analysis.usage import expressions

TRANSCENDENTAL = frozenset({
    "exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sinh", "cosh", "tanh", "sigmoid",
    "sin", "cos", "tan", "atan", "erf", "pow", "fmod",
})  # fmt: skip

SUBNORMAL_EXP2 = 3
"""What ex2.approx without .ftz takes besides: a comparison, and a product before and behind (as the assembler makes
it)."""


def nest_demands(nest: tile.Parallel, layout: Fragment, threads: int, fast_math: bool) -> list[Demand]:
    """`threads` run the nest together, each what `layout` gives it."""
    in_registers = all(s.buffer.in_registers for s in tile.walk(nest.body) if isinstance(s, tile.Store))
    elements = math.prod(nest.extents)
    found: list[Demand] = []
    operations = special = 0
    for stmt in tile.walk(nest.body):
        for expr in expressions(stmt):
            for e in _each_element(expr, nest, fast_math):
                match e:
                    case tile.Load(buffer=buffer):
                        count = _distinct(e, nest, layout) * threads if in_registers else elements
                        found += loaded(buffer, min(count, elements) * buffer.dtype.bytes, threads)
                    case tile.Call(fn=fn) if fn in TRANSCENDENTAL:
                        special += 1
                        operations += SUBNORMAL_EXP2 if fn == "exp2" and not fast_math else 0
                    case tile.Unary() | tile.Binary() | tile.Cast() | tile.Select() | tile.Call():
                        operations += 1
                    case _:
                        pass
        if isinstance(stmt, tile.Store):
            found += stored(stmt.buffer, elements * stmt.buffer.dtype.bytes, threads)
    if special:
        found.append(demand("mufu", elements=elements * special))
    found.append(demand("elementwise", ops=max(operations, 1), elements=elements, threads=threads))
    return found


def _each_element(expr: tile.Expr, nest: tile.Parallel, fast_math: bool) -> Iterator[tile.Expr]:
    """The parts that every element of the nest has of its own, and all loads; without products that become one with a
    sum."""
    if isinstance(expr, tile.Load) or is_of_each(expr, nest):
        yield expr
    parts = list(tile.children(expr))
    if fast_math and isinstance(expr, tile.Binary) and expr.op in ("add", "sub") and expr.dtype.is_float:
        products = [p for p in parts if isinstance(p, tile.Binary) and p.op == "mul"]
        fused = max(products, key=lambda p: is_of_each(p, nest), default=None)
        if fused is not None:
            parts.remove(fused)
            parts += tile.children(fused)
    for part in parts:
        yield from _each_element(part, nest, fast_math)


def _distinct(load: tile.Load, nest: tile.Parallel, layout: Fragment) -> int:
    """How many elements a thread loads: as many as its part of the nest has different values of the variables that say
    which."""
    used = {e for e in tile.walk_expr(load) if isinstance(e, tile.Var)}
    dims = [dim for dim, var in enumerate(nest.vars) if var in used]
    offsets = map(layout.register_offset, range(layout.register_count))
    return len({tuple(offset[dim] for dim in dims) for offset in offsets})


def is_of_each(expr: tile.Expr, nest: tile.Parallel) -> bool:
    """Whether no row or column of the nest has the value in common."""
    return {*nest.vars} <= {e for e in tile.walk_expr(expr) if isinstance(e, tile.Var)}
