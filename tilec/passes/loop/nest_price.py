"""What an elementwise nest asks of the machine: accesses to memory, functions of the special unit, other operations.

Counted as the assembler leaves them: what the same in a row or column it computes once, and loads once where the nest
stores to registers alone. A sign costs nothing: operations of floats take negated operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ops.lowering import Demand, list_load_demands, list_store_demands, make_demand
from tilec.passes.analysis.usage import list_expressions
from tilec.ptx import snippet

TRANSCENDENTAL = frozenset({
    "exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sinh", "cosh", "tanh", "sigmoid",
    "sin", "cos", "tan", "atan", "erf", "pow", "fmod",
})  # fmt: skip

SUBNORMAL_EXP2 = 3
"""What ex2.approx without .ftz takes besides: a comparison, and a product before and behind (as the assembler makes
it)."""


def nest_demands(nest: tile.Parallel, layout: Fragment, threads: int, fast_math: bool) -> list[Demand]:
    """`threads` run the nest together, each what `layout` gives it."""
    in_registers = all(s.buffer.in_registers for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store))
    elements = math.prod(nest.extents)
    found: list[Demand] = []
    operations = special = 0
    for stmt in tile.walk_statements(nest.body):
        for expr in list_expressions(stmt):
            for e in _each_element(expr, nest):
                match e:
                    case tile.Load(buffer=buffer):
                        count = _distinct(e, nest, layout) * threads if in_registers else elements
                        found += list_load_demands(buffer, min(count, elements) * buffer.dtype.bytes, threads)
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
                    case _:
                        pass
        if isinstance(stmt, tile.Store):
            found += list_store_demands(stmt.buffer, elements * stmt.buffer.dtype.bytes, threads)
    if special:
        found.append(make_demand("mufu", elements=elements * special))
    found.append(make_demand("elementwise", ops=max(operations, 1), elements=elements, threads=threads))
    return found


def _each_element(expr: tile.Expr, nest: tile.Parallel) -> Iterator[tile.Expr]:
    """The parts that every element of the nest has of its own, and all loads."""
    if isinstance(expr, tile.Load) or is_of_each(expr, nest):
        yield expr
    for part in tile.direct_operands(expr):
        yield from _each_element(part, nest)


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
