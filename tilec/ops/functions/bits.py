"""T.popcount, T.clz, T.__ffs and T.__fns: counts and positions of an integer's bits, as calls of tile IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec.ir import tile
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.types import BOOL, INT32, UINT8, UINT16, UINT32, UINT64, DType
from tilec.ops.functions.scalar import FUNCTIONS, ScalarFunction
from tilec.ops.language.signature import Call, Parameter, Signature, as_expr
from tilec.ops.language.values import Value
from tilec.support.diagnostics import raise_error

_UNSIGNED: dict[int, DType] = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}


def _read_operand(call: Call) -> tile.Expr:
    """Return the argument `x` as an integer expression of 8 to 64 bits; raises an error for other types."""
    operand = as_expr(call["x"])
    if operand.dtype.kind not in ("int", "uint") or operand.dtype.bits not in _UNSIGNED:
        raise_error(
            "wrong-dtype",
            f"{call.name} needs an integer",
            call["x"].span,
            f"this is {operand.dtype}",
            help="use T.reinterpret to get the bits of a float as an integer" if operand.dtype.is_float else None,
        )
    return operand


def _extend_to_word(operand: tile.Expr) -> tile.Expr:
    """Return the operand's bits zero-extended to uint32, or as uint64 if it has 64."""
    unsigned = cast_expr(operand, _UNSIGNED[operand.dtype.bits])
    return unsigned if unsigned.dtype.bits == 64 else cast_expr(unsigned, UINT32)


def _build_popcount(call: Call) -> Value:
    """Build T.popcount: the number of 1 bits, in the operand's type."""
    operand = _read_operand(call)
    return cast_expr(tile.Call("popcount", (_extend_to_word(operand),), INT32), operand.dtype)


def _build_clz(call: Call) -> Value:
    """Build T.clz: the int32 number of leading 0 bits, counted in the operand's own width."""
    operand = _read_operand(call)
    zeros = tile.Call("clz", (_extend_to_word(operand),), INT32)
    added = max(32 - operand.dtype.bits, 0)
    return tile.Binary("sub", zeros, make_constant(added, INT32), INT32) if added else zeros


def _build_ffs(call: Call) -> Value:
    """Build T.__ffs: the int32 position of the lowest 1 bit, counted from 1; 0 for 0. For x != 0, `x ^ (x - 1)` has the
    lowest 1 of x and all bits below set."""
    word = _extend_to_word(_read_operand(call))
    below = tile.Binary("sub", word, make_constant(1, word.dtype), word.dtype)
    place = tile.Call("popcount", (tile.Binary("xor", word, below, word.dtype),), INT32)
    return tile.Select(
        tile.Binary("eq", word, make_constant(0, word.dtype), BOOL), make_constant(0, INT32), place, INT32
    )


def _build_fns(call: Call) -> Value:
    """Build T.__fns as a uint32 call of mask, base and offset; raises an error for operands over 32 bits or floats."""
    mask, base, offset = (as_expr(call[name]) for name in ("mask", "base", "offset"))
    for name, operand in (("mask", mask), ("base", base), ("offset", offset)):
        if operand.dtype.kind not in ("int", "uint") or operand.dtype.bits > 32:
            raise_error("wrong-dtype", f"{call.name} works on 32 bits", call[name].span, f"this is {operand.dtype}")
    return tile.Call("fns", (cast_expr(mask, UINT32), cast_expr(base, UINT32), cast_expr(offset, INT32)), UINT32)


FUNCTIONS["T.__fns"] = ScalarFunction(
    Signature("T.__fns", (Parameter("mask"), Parameter("base"), Parameter("offset"))),
    "the place of the offset-th 1 among the bits of mask, from place base on upwards, downwards for a negative offset; "
    "0xFFFFFFFF where there is none, uint32",
    _build_fns,
)

FUNCTIONS |= {
    f"T.{name}": ScalarFunction(Signature(f"T.{name}", (Parameter("x"),)), doc, build)
    for name, doc, build in (
        ("popcount", "the number of bits of the integer x that are 1, in its dtype", _build_popcount),
        ("clz", "the number of leading 0 bits of the integer x, counted in its dtype; int32", _build_clz),
        ("__ffs", "the position of the lowest 1 bit of the integer x, counted from 1; 0 if x is 0; int32", _build_ffs),
    )
}


def _count_ones(x: Any) -> Any:
    """Return the number of 1 bits of each integer in an array."""
    import numpy as np

    return np.bitwise_count(x)


def _count_leading_zeros(x: Any) -> Any:
    """Return the number of leading 0 bits of each unsigned integer in an array, in its own width."""
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < x.dtype.itemsize * 8:
            x = x | x >> x.dtype.type(shift)
    return _count_ones(~x)


def _find_nth_one(mask: Any, base: Any, offset: Any) -> Any:
    """Return the position of each mask's offset-th 1 bit from `base` on, downwards for a negative offset; 0xFFFFFFFF if
    none. For offset 0 it is the bit at `base` itself."""
    import numpy as np

    mask, base, offset = (x[..., None] for x in np.broadcast_arrays(mask, base, offset))
    place = np.arange(32)
    ones = (mask >> place.astype(np.uint32) & 1).astype(bool) & (base < 32)
    up, down = ones & (place >= base), ones & (place <= base)
    counted = np.cumsum(up, -1), np.cumsum(down[..., ::-1], -1)[..., ::-1]
    found = np.where(
        offset > 0,
        up & (counted[0] == offset),
        np.where(offset < 0, down & (counted[1] == -offset.astype(np.int64)), up & (place == base)),
    )
    return np.where(found.any(-1), found.argmax(-1), 0xFFFFFFFF).astype(np.uint32)


REFERENCES: dict[str, Callable[..., Any]] = {"popcount": _count_ones, "clz": _count_leading_zeros, "fns": _find_nth_one}
"""References on arrays of unsigned integers, by the name of the call in tile IR."""
