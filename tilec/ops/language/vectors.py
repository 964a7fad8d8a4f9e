"""Vectors: neighbouring elements that a kernel uses as one value. Arithmetic on them is done lane by lane.

A vector is read and written by one memory access where it is aligned (`codegen.elementwise.elementwise`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tilec.ir import tile
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, UINT8, UINT16, UINT32, UINT64, DType
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_element_type, as_expr
from tilec.ops.language.values import Lanes, Value, VectorType, describe_value
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

_UNSIGNED: dict[int, DType] = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
VECTOR_TYPES = tuple(
    f"T.{name}"
    for name in (
        "float16x2", "bfloat16x2", "float32x2", "float32x4", "float32x8", "float8_e4m3fnx8", "float4_e2m1fnx2",
        "uint32x2", "uint32x4", "uint32x8",
    )
)  # fmt: skip
"""The vector types that TileLang's kernels use; other element types and numbers of lanes are supported too."""

_PAIR_DTYPES = (FLOAT32, BFLOAT16, FLOAT16)


def _make_pairs(fn: Callable[[tuple[tile.Expr, ...], DType], tile.Expr]) -> Callable[[Call], Value]:
    """Make a function that builds a vector of two floats from a call by `fn`, which builds one lane."""

    def build_pair(call: Call) -> Value:
        """Build the vector lane by lane; refuses arguments that are not vectors of two floats, all of one type."""
        types: list[Lanes] = []
        for name in call.arguments:
            value = call[name].value
            if not isinstance(value, Lanes) or len(value.parts) != 2 or value.dtype not in _PAIR_DTYPES:
                call.refuse(name, "a vector: float32x2, float16x2 or bfloat16x2")
            types.append(value)
        other = next((n for n, v in zip(call.arguments, types, strict=True) if v.dtype != types[0].dtype), None)
        if other is not None:
            call.refuse(other, f"a {types[0].type}, as the first one is")
        return Lanes(tuple(fn(row, types[0].dtype) for row in zip(*(v.parts for v in types), strict=True)))

    return build_pair


def _make_call(fn: str) -> Callable[[tuple[tile.Expr, ...], DType], tile.Expr]:
    """Make a function that builds the call `fn` on one lane's operands."""
    return lambda row, dtype: tile.Call(fn, row, dtype)


def _make_operator(op: tile.BinaryOp) -> Callable[[tuple[tile.Expr, ...], DType], tile.Expr]:
    """Make a function that builds `x op y` on one lane's operands."""
    return lambda row, dtype: tile.Binary(op, row[0], row[1], dtype)


PAIR_FUNCTIONS: tuple[tuple[str, str, str, Callable[[Call], Value]], ...] = (
    ("add2", "x y", "x + y, for vectors of two floats", _make_pairs(_make_operator("add"))),
    ("sub2", "x y", "x - y, of vectors of two floats", _make_pairs(_make_operator("sub"))),
    ("mul2", "x y", "x * y, of vectors of two floats", _make_pairs(_make_operator("mul"))),
    ("fma2", "x y z", "x * y + z rounded once, of vectors of two floats", _make_pairs(_make_call("fma"))),
    ("max2", "x y", "the element-wise maximum, for vectors of two floats", _make_pairs(_make_operator("max"))),
    ("min2", "x y", "the element-wise minimum, for vectors of two floats", _make_pairs(_make_operator("min"))),
    ("abs2", "x", "absolute values, of a vector of two floats", _make_pairs(_make_call("abs"))),
)
"""Rows of name, parameters, documentation and builder."""


# ---- wide accesses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WideAccess:
    """A function that loads or stores `bits` bits at once."""

    signature: Signature
    doc: str
    bits: int
    scope: Literal["global", "shared"]
    stores: bool


def _make_wide_access(letters: str, bits: int) -> WideAccess:
    """Make the row of T.ldg128 and its like; `letters` tells loads from stores, and global from shared."""
    scope: Literal["global", "shared"] = "global" if letters[2] == "g" else "shared"
    stores = letters.startswith("st")
    where = "a tensor" if scope == "global" else "a shared tile"
    predicate = (Parameter("pred", None),) if scope == "global" else ()
    words = "a uint32" if bits == 32 else f"a vector of {bits // 32} uint32"
    if stores:
        parameters: tuple[Parameter, ...] = (Parameter("dst"), Parameter("value"), *predicate)
        doc = f"a statement: store {bits} bits in {where}, starting at an element, or in a slice of that size"
    else:
        parameters = (Parameter("src"), *predicate)
        doc = f"the {bits} bits of {where}, starting at an element, or in a slice of that size, as {words}"
    return WideAccess(Signature(f"T.{letters}{bits}", parameters), doc, bits, scope, stores)


WIDE_ACCESSES: dict[str, WideAccess] = {
    w.signature.name: w
    for w in (
        *(_make_wide_access(letters, bits) for letters in ("ldg", "stg") for bits in (32, 64, 128, 256)),
        *(_make_wide_access(letters, bits) for letters in ("lds", "sts") for bits in (32, 64, 128)),
    )
}

LDG = Signature("T.__ldg", (Parameter("load_or_buf"), Parameter("index", None)))


# ---- conversions -----------------------------------------------------------------------------------------------------


def convert_vector(value: Argument, target: VectorType) -> Lanes:
    """Return a vector converted lane by lane, or a number repeated in all lanes; raises an error for another number of
    lanes."""
    if not isinstance(value.value, Lanes):
        return Lanes((cast_expr(as_expr(value), target.dtype),) * target.lanes)
    if len(value.value.parts) != target.lanes:
        raise_error("wrong-dtype", f"a conversion to {target}", value.span, f"this is {describe_value(value.value)}")
    return Lanes(tuple(cast_expr(part, target.dtype) for part in value.value.parts))


def reinterpret_value(call: Call, value: Argument, dtype: Argument) -> Value:
    """Return the bits of a scalar or vector as a type of the same size, scalar or vector; raises an error for other
    sizes."""
    target, lanes = as_element_type(dtype)
    source = value.value if isinstance(value.value, Lanes) else Lanes((as_expr(value),))
    if target.bits * lanes != source.dtype.bits * len(source.parts) or BOOL in (target, source.dtype):
        raise_error(
            "wrong-dtype",
            "T.reinterpret keeps the bits",
            call.span,
            f"{source.type} has {source.dtype.bits * len(source.parts)}, {VectorType(target, lanes)} has "
            f"{target.bits * lanes}",
            help="T.cast converts the value",
        )
    made = reinterpret_lanes(source, target)
    return made if lanes > 1 else made.parts[0]


def reinterpret_lanes(source: Lanes, target: DType) -> Lanes:
    """Return the same bits as lanes of another type, the first lane in the lowest bits; the original vector where it
    fits. The original is the one that the source is a reinterpretation of."""
    if source.dtype == target:
        return source
    if source.origin is not None and source.origin.dtype == target:
        return source.origin
    origin = source.origin or source
    raw, wanted = (_UNSIGNED[dtype.bits] for dtype in (source.dtype, target))
    parts = [_convert_to_bits(part, raw) for part in source.parts]
    if raw.bits > wanted.bits:
        count = raw.bits // wanted.bits
        shifts = [make_constant(wanted.bits * i, raw) for i in range(count)]
        parts = [cast_expr(_shift_bits("shr", part, by), wanted) for part in parts for by in shifts]
    elif raw.bits < wanted.bits:
        count = wanted.bits // raw.bits
        parts = [_join_parts(parts[i : i + count], raw, wanted) for i in range(0, len(parts), count)]
    return Lanes(tuple(p if target == wanted else tile.Call("reinterpret", (p,), target) for p in parts), origin)


def _convert_to_bits(part: tile.Expr, raw: DType) -> tile.Expr:
    """Return a lane's bits as the unsigned type `raw`."""
    return part if part.dtype == raw else tile.Call("reinterpret", (part,), raw)


def _join_parts(parts: list[tile.Expr], raw: DType, wide: DType) -> tile.Expr:
    """Return the bits of several words as one wider word, the first in the lowest bits."""
    total = cast_expr(parts[0], wide)
    for place, part in enumerate(parts[1:], 1):
        moved = _shift_bits("shl", cast_expr(part, wide), make_constant(raw.bits * place, wide))
        total = tile.Binary("bitor", total, moved, wide)
    return total


def _shift_bits(op: tile.BinaryOp, value: tile.Expr, by: tile.Expr) -> tile.Expr:
    """Return the value shifted by a number of bits; itself for a shift by the constant 0."""
    return value if getattr(by, "value", None) == 0 else tile.Binary(op, value, by, value.dtype)
