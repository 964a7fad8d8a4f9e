"""Neighbours of 16 bits with the same operation, as pairs in a word: one instruction computes both.

Small integers become 16-bit floats without a conversion: their bits are or'ed into a float whose last digit counts ones
(1024 of float16, 128 of bfloat16), and this float is subtracted. Marlin converts weights of four bits this way (Frantar
et al., 2024).
"""

from __future__ import annotations

from tilec.codegen.halves import OPERATIONS, constant, emit_half
from tilec.codegen.memory import pack, pack_f32
from tilec.codegen.scalar import ReadElement, Scalars
from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from tilec.ptx.module import Imm, Reg
from tilec.support.records import dataclass

Lane = tuple[tile.Expr, ReadElement]
"""An expression, and the function that reads the elements of its lane."""


@dataclass(frozen=True, slots=True)
class _Ones:
    """A float whose last digit counts ones, and the limit up to which all integers are floats of the type."""

    bits: int
    value: int
    exact: int


_ONES = {FLOAT16: _Ones(0x6400, 1024, 2048), BFLOAT16: _Ones(0x4300, 128, 256)}


def are_alike(expr: tile.Expr) -> bool:
    """Return whether two values of this form may take fewer instructions as a pair."""
    match expr:
        case tile.Binary(op=op, dtype=dtype):
            return dtype in _ONES and op in OPERATIONS
        case tile.Call(fn="fma", dtype=dtype):
            return dtype in _ONES
        case tile.Cast(a=a, dtype=dtype):
            return dtype in _ONES and a.dtype == INT32
        case _:
            return False


def pair(first: Lane, second: Lane, dtype: DType, scalars: Scalars) -> Reg:
    """Compute both values in one word."""
    (a, _), (b, _) = first, second
    if isinstance(a, tile.Binary) and isinstance(b, tile.Binary) and a.op == b.op and a.op in OPERATIONS:
        return _computed(a.op, (a.a, a.b), (b.a, b.b), first, second, dtype, scalars)
    if isinstance(a, tile.Call) and isinstance(b, tile.Call) and a.fn == b.fn == "fma":
        return _computed("fma", a.args, b.args, first, second, dtype, scalars)
    if isinstance(a, tile.Cast) and isinstance(b, tile.Cast) and a.a.dtype == b.a.dtype:
        if a.a.dtype == FLOAT32:
            return pack_f32(scalars, dtype, scalars.value(a.a, first[1]), scalars.value(b.a, second[1]))
        if a.a.dtype == INT32 and (found := _numbers((a.a, first[1]), (b.a, second[1]), dtype, scalars)) is not None:
            return found
    halves = [scalars.register(expr, read) for expr, read in (first, second)]
    return scalars.again("pair", halves, lambda: pack(scalars.builder, halves, dtype))


def _computed(
    op: str,
    of_first: tuple[tile.Expr, ...],
    of_second: tuple[tile.Expr, ...],
    first: Lane,
    second: Lane,
    dtype: DType,
    scalars: Scalars,
) -> Reg:
    rows = zip(of_first, of_second, strict=True)
    operands = [pair((a, first[1]), (b, second[1]), dtype, scalars) for a, b in rows]
    return scalars.again(
        ("pairs", op, dtype), operands, lambda: emit_half(op, operands, dtype, scalars.builder, pairs=True)
    )


def _numbers(first: Lane, second: Lane, dtype: DType, scalars: Scalars) -> Reg | None:
    """Convert two integers of the form small number + common constant, close to the bias; None for others."""
    ones, builder = _ONES[dtype], scalars.builder
    forms = [affine(expr) for expr, _ in (first, second)]
    low, high = (form.symbolic() for form in forms)
    intervals = [scalars.interval(each) for each in (low, high)]
    added = forms[0].constant
    if forms[1].constant != added or not all(least >= 0 and most < ones.value for least, most in intervals):
        return None
    if abs(added - ones.value) > ones.exact or not all(abs(end + added) <= ones.exact for i in intervals for end in i):
        return None
    lower, upper = scalars.register(low, first[1]), _in_upper_half(high, second, scalars)
    word = builder.into("b32", "lop3.b32", lower, upper, Imm(ones.bits << 16 | ones.bits), Imm(0xFE))
    moved = constant(added - ones.value, dtype, builder, pairs=True)
    return emit_half("add", (word, moved), dtype, builder, pairs=True)


def _in_upper_half(expr: tile.Expr, lane: Lane, scalars: Scalars) -> Reg:
    """Emit the number times 2¹⁶. A shift and a mask in the expression are combined with the move."""
    word, shift = expr, 0
    mask = None
    if isinstance(expr, tile.Binary) and expr.op == "bitand" and isinstance(expr.b, tile.Const):
        word, mask = expr.a, int(expr.b.value)
        if isinstance(word, tile.Binary) and word.op == "shr":
            by = affine(word.b)
            if not by.terms and 0 <= by.constant <= 16:
                word, shift = word.a, by.constant
    moved = scalars.builder.into("b32", "shl.b32", scalars.register(word, lane[1]), Imm(16 - shift))
    return moved if mask is None else scalars.builder.into("b32", "and.b32", moved, Imm(mask << 16))
