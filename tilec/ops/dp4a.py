"""T.dp4a: the dot product of four 8-bit integers with four others, added to an int32."""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.expr import cast_expr
from tilec.ir.types import INT8, INT32, UINT8
from tilec.ops.signature import Call, Parameter, Signature
from tilec.ops.values import EXPR_TYPES, Access
from tilec.support.diagnostics import raise_error

DP4A = Signature("T.dp4a", (Parameter("A"), Parameter("B"), Parameter("C")))
_LANES = 4


def build_dp4a(call: Call) -> tile.Store:
    """Build `C += A[0] * B[0] + … + A[3] * B[3]`, counted from the given elements, or from the first of a tile."""
    (a, at_a), (b, at_b), (c, at_c) = (_read_first_element(call, name) for name in "ABC")
    for name, buffer, wanted in (("A", a, (INT8, UINT8)), ("B", b, (INT8, UINT8)), ("C", c, (INT32,))):
        if buffer.dtype not in wanted:
            expected = " or ".join(t.name for t in wanted)
            raise_error(
                "wrong-dtype", f"T.dp4a: `{name}` must be {expected}", call[name].span, f"this is {buffer.dtype}"
            )
    total: tile.Expr = tile.Load(c, at_c)
    for lane in range(_LANES):
        x, y = (tile.Load(t, (*i[:-1], add_exprs(i[-1], tile.int32_const(lane)))) for t, i in ((a, at_a), (b, at_b)))
        total = tile.Binary("add", total, tile.Binary("mul", cast_expr(x, INT32), cast_expr(y, INT32), INT32), INT32)
    return tile.Store(c, at_c, total, call.span)


def _read_first_element(call: Call, name: str) -> tuple[tile.Buffer, tuple[tile.Expr, ...]]:
    value = call[name].value
    if isinstance(value, tile.Buffer):
        return value, tuple(tile.int32_const(0) for _ in value.extents)
    if not isinstance(value, Access) or value.has_extent:
        call.refuse(name, "a tile, or its first element")
    assert isinstance(value, Access)
    return value.buffer, tuple(i for i in value.indices if isinstance(i, EXPR_TYPES))
