"""Neighbours of 16 bits with the same operation, as pairs in a word: one instruction computes both.

Small integers become 16-bit floats without a conversion: their bits are or'ed into a float whose last digit counts ones
(1024 of float16, 128 of bfloat16), and this float is subtracted. Marlin converts weights of four bits this way (Frantar
et al., 2024).
"""

from __future__ import annotations

from collections.abc import Iterable

from tilec.codegen.memory import pack_f32, pack_word
from tilec.codegen.scalar.scalar import ReadElement, Scalars
from tilec.codegen.scalar.small_floats import HALF_OPERATIONS, emit_half, emit_half_constant
from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from tilec.ptx.module import Imm, Reg
from tilec.support.records import dataclass

LaneExpr = tuple[tile.Expr, ReadElement]
"""An expression, and the function that reads the elements of its lane."""


@dataclass(frozen=True, slots=True)
class _IntegerBias:
    """A float whose last digit counts ones, and the limit up to which all integers are floats of the type."""

    bits: int
    value: int
    exact: int


_INTEGER_BIASES = {FLOAT16: _IntegerBias(0x6400, 1024, 2048), BFLOAT16: _IntegerBias(0x4300, 128, 256)}


def can_pair(expr: tile.Expr) -> bool:
    """Return whether two 16-bit values of this form may take fewer instructions as a pair in one word."""
    match expr:
        case tile.Binary(op=op, dtype=dtype):
            return dtype in _INTEGER_BIASES and op in HALF_OPERATIONS
        case tile.Call(fn="fma", dtype=dtype):
            return dtype in _INTEGER_BIASES
        case tile.Cast(a=a, dtype=dtype):
            return dtype in _INTEGER_BIASES and a.dtype == INT32
        case _:
            return False


def emit_pair(first: LaneExpr, second: LaneExpr, dtype: DType, scalars: Scalars) -> Reg:
    """Emit and return a word with both 16-bit values, by paired instructions if their operations agree, else packed."""
    (a, _), (b, _) = first, second
    if isinstance(a, tile.Binary) and isinstance(b, tile.Binary) and a.op == b.op and a.op in HALF_OPERATIONS:
        return _emit_paired_operation(a.op, ((a.a, b.a), (a.b, b.b)), (first[1], second[1]), dtype, scalars)
    if isinstance(a, tile.Call) and isinstance(b, tile.Call) and a.fn == b.fn == "fma":
        pairs = zip(a.args, b.args, strict=True)
        return _emit_paired_operation("fma", pairs, (first[1], second[1]), dtype, scalars)
    if isinstance(a, tile.Cast) and isinstance(b, tile.Cast) and a.a.dtype == b.a.dtype:
        if a.a.dtype == FLOAT32:
            return pack_f32(scalars, dtype, scalars.get_operand(a.a, first[1]), scalars.get_operand(b.a, second[1]))
        if (
            a.a.dtype == INT32
            and (found := _emit_paired_integers((a.a, first[1]), (b.a, second[1]), dtype, scalars)) is not None
        ):
            return found
    halves = [scalars.get_register(expr, read) for expr, read in (first, second)]
    return scalars.reuse_result("pair", halves, lambda: pack_word(scalars.builder, halves, dtype))


def _emit_paired_operation(
    op: str, pairs: Iterable[tuple[tile.Expr, tile.Expr]], reads: tuple[ReadElement, ReadElement], dtype: DType,
    scalars: Scalars,
) -> Reg:  # fmt: skip
    """Emit one operation on two 16-bit lanes, from the pairs of operand expressions that `reads` read."""
    operands = [emit_pair((a, reads[0]), (b, reads[1]), dtype, scalars) for a, b in pairs]
    return scalars.reuse_result(
        ("pairs", op, dtype), operands, lambda: emit_half(op, operands, dtype, scalars.builder, pairs=True)
    )


def _emit_paired_integers(first: LaneExpr, second: LaneExpr, dtype: DType, scalars: Scalars) -> Reg | None:
    """Emit the conversion of two integers to a float pair by bits; None if too large or with other constant terms."""
    ones, builder = _INTEGER_BIASES[dtype], scalars.builder
    forms = [affine_form(expr) for expr, _ in (first, second)]
    low, high = (form.without_constant() for form in forms)
    intervals = [scalars.find_interval(each) for each in (low, high)]
    added = forms[0].constant
    if forms[1].constant != added or not all(least >= 0 and most < ones.value for least, most in intervals):
        return None
    if abs(added - ones.value) > ones.exact or not all(abs(end + added) <= ones.exact for i in intervals for end in i):
        return None
    lower, upper = scalars.get_register(low, first[1]), _move_to_upper_half(high, second, scalars)
    word = builder.create("b32", "lop3.b32", lower, upper, Imm(ones.bits << 16 | ones.bits), Imm(0xFE))
    moved = emit_half_constant(added - ones.value, dtype, builder, pairs=True)
    return emit_half("add", (word, moved), dtype, builder, pairs=True)


def _move_to_upper_half(expr: tile.Expr, lane: LaneExpr, scalars: Scalars) -> Reg:
    """Emit and return a word with an integer's lower bits in the upper half, merged with the integer's shift and
    mask."""
    word, shift = expr, 0
    mask = None
    if isinstance(expr, tile.Binary) and expr.op == "bitand" and isinstance(expr.b, tile.Const):
        word, mask = expr.a, int(expr.b.value)
        if isinstance(word, tile.Binary) and word.op == "shr":
            by = affine_form(word.b)
            if not by.terms and 0 <= by.constant <= 16:
                word, shift = word.a, by.constant
    moved = scalars.builder.create("b32", "shl.b32", scalars.get_register(word, lane[1]), Imm(16 - shift))
    return moved if mask is None else scalars.builder.create("b32", "and.b32", moved, Imm(mask << 16))
