"""Neighbours of 16 bits with the same operation, as pairs in a word: one instruction computes both.

Small integers become 16-bit floats without a conversion: their bits are or'ed into a float whose last digit counts ones
(1024 of float16, 128 of bfloat16), and this float is subtracted. Marlin converts weights of four bits this way (Frantar
et al., 2024). An integer may lie further left in the float's fraction, where its bits are already: an fma then scales
it back, exactly. Floats that are put together from bit fields are gathered for both lanes at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilec.codegen.builder import encode_half
from tilec.codegen.elementwise.gather_bits import HALF_BITS, Lane, emit_gather, is_small_integer, list_bits
from tilec.codegen.memory import pack_f32, pack_word
from tilec.codegen.scalar.scalar import Scalars
from tilec.codegen.scalar.small_floats import HALF_NAMES, HALF_OPERATIONS, emit_half, emit_half_constant
from tilec.ir import tile
from tilec.ir.affine import Affine, affine_form
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from tilec.ptx.module import Imm, Operand, Reg, Vector
from tilec.support.records import dataclass


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
            return dtype in HALF_NAMES and op in HALF_OPERATIONS
        case tile.Call(fn="fma", dtype=dtype):
            return dtype in HALF_NAMES
        case tile.Cast(a=a, dtype=dtype) | tile.Call(fn="reinterpret", args=(a,), dtype=dtype):
            return dtype in HALF_NAMES and is_small_integer(a.dtype)
        case _:
            return False


def emit_pair(first: Lane, second: Lane, dtype: DType, scalars: Scalars) -> Reg:
    """Emit and return a word with both 16-bit values, by paired instructions if their operations agree, else packed."""
    a, b = first.expr, second.expr
    if isinstance(a, tile.Binary) and isinstance(b, tile.Binary) and a.op == b.op and a.op in HALF_OPERATIONS:
        return _emit_paired_operation(a.op, ((a.a, b.a), (a.b, b.b)), (first, second), dtype, scalars)
    if isinstance(a, tile.Const) and isinstance(b, tile.Const):
        return _emit_constant_pair([float(a.value), float(b.value)], dtype, scalars)
    if isinstance(a, tile.Call) and isinstance(b, tile.Call) and a.fn == b.fn == "fma":
        return _emit_paired_operation("fma", zip(a.args, b.args, strict=True), (first, second), dtype, scalars)
    if isinstance(a, tile.Cast) and isinstance(b, tile.Cast) and a.a.dtype == b.a.dtype:
        values = replace(first, expr=a.a), replace(second, expr=b.a)
        if a.a.dtype == FLOAT32:
            return pack_f32(scalars, dtype, *emit_float32_pair(*values, scalars))
        if is_small_integer(a.a.dtype) and (found := _emit_paired_integers(*values, dtype, scalars)) is not None:
            return found
    if isinstance(a, tile.Call) and isinstance(b, tile.Call) and a.fn == b.fn == "reinterpret":
        fields = replace(first, expr=a.args[0]), replace(second, expr=b.args[0])
        if all(is_small_integer(lane.expr.dtype) for lane in fields):
            bits = [list_bits(lane.expr, scalars)[:HALF_BITS] for lane in fields]
            return emit_gather(fields, (bits[0], bits[1]), scalars).word
    halves = [scalars.get_register(lane.expr, lane.read) for lane in (first, second)]
    return scalars.reuse_result("pair", halves, lambda: pack_word(scalars.builder, halves, dtype))


def emit_float32_pair(first: Lane, second: Lane, scalars: Scalars) -> tuple[Operand, Operand]:
    """Emit and return two float32 values; 16-bit floats that they are computed from alike are computed in pairs."""
    a, b = first.expr, second.expr
    match a, b:
        case tile.Cast(a=x), tile.Cast(a=y) if x.dtype == y.dtype and can_pair(x) and can_pair(y):
            word = emit_pair(replace(first, expr=x), replace(second, expr=y), x.dtype, scalars)
            halves = scalars.builder.new_registers("b16", 2)
            scalars.builder.emit("mov.b32", Vector(halves), word)
            return scalars.widen(halves[0], x.dtype), scalars.widen(halves[1], x.dtype)
        case tile.Binary(op=op, a=x, b=factor), tile.Binary(op=other, a=y, b=other_factor) if (
            op == other and a.dtype == FLOAT32 and any(map(_widens_pair, (x, factor)))
        ):
            left = emit_float32_pair(replace(first, expr=x), replace(second, expr=y), scalars)
            right = emit_float32_pair(replace(first, expr=factor), replace(second, expr=other_factor), scalars)
            low, high = (scalars.emit_float_operation(op, *sides, "f32") for sides in zip(left, right, strict=True))
            return low, high
        case _:
            return scalars.get_operand(a, first.read), scalars.get_operand(b, second.read)


def _widens_pair(expr: tile.Expr) -> bool:
    """Return whether an expression, or an operand of its operation, is a 16-bit float to be computed in pairs."""
    if isinstance(expr, tile.Binary):
        return _widens_pair(expr.a) or _widens_pair(expr.b)
    return isinstance(expr, tile.Cast) and can_pair(expr.a)


def _emit_paired_operation(
    op: str, pairs: Iterable[tuple[tile.Expr, tile.Expr]], lanes: tuple[Lane, Lane], dtype: DType, scalars: Scalars
) -> Reg:
    """Emit one operation on two 16-bit lanes, from the pairs of their operand expressions."""
    operands = [emit_pair(replace(lanes[0], expr=a), replace(lanes[1], expr=b), dtype, scalars) for a, b in pairs]
    return scalars.reuse_result(
        ("pairs", op, dtype), operands, lambda: emit_half(op, operands, dtype, scalars.builder, pairs=True)
    )


def _emit_paired_integers(first: Lane, second: Lane, dtype: DType, scalars: Scalars) -> Reg | None:
    """Emit the conversion of two integers to a float pair by bits; None if too large or with other constant terms."""
    ones, builder = _INTEGER_BIASES[dtype], scalars.builder
    forms = [_split_constant(lane.expr) for lane in (first, second)]
    low, high = (form.without_constant() for form in forms)
    intervals = [scalars.find_interval(each) for each in (low, high)]
    added = forms[0].constant
    if forms[1].constant != added or not all(least >= 0 and most < ones.value for least, most in intervals):
        return None
    if abs(added - ones.value) > ones.exact or not all(abs(end + added) <= ones.exact for i in intervals for end in i):
        return None
    widths = [int(most).bit_length() for _, most in intervals]
    bits = [list_bits(each, scalars)[:width] for each, width in zip((low, high), widths, strict=True)]
    room = ones.value.bit_length() - 1 - max(widths)
    lanes = replace(first, expr=low), replace(second, expr=high)
    found = emit_gather(lanes, (bits[0], bits[1]), scalars, ones.bits << HALF_BITS | ones.bits, room)
    if found.lifted == (0, 0):
        moved = emit_half_constant(added - ones.value, dtype, builder, pairs=True)
        return emit_half("add", (found.word, moved), dtype, builder, pairs=True)
    factors = _emit_constant_pair([2.0**-by for by in found.lifted], dtype, scalars)
    offsets = _emit_constant_pair([added - ones.value / 2**by for by in found.lifted], dtype, scalars)
    return emit_half("fma", (found.word, factors, offsets), dtype, builder, pairs=True)


def _split_constant(expr: tile.Expr) -> Affine:
    """Return an integer as a sum with a constant; one whose arithmetic wraps around in a small type as a whole."""
    return affine_form(expr) if expr.dtype == INT32 else Affine(((expr, 1),), 0)


def _emit_constant_pair(values: list[float], dtype: DType, scalars: Scalars) -> Reg:
    """Return a word with two constants of a 16-bit type, the first in the lower half, emitted once in a scope."""
    low, high = (encode_half(value, dtype) for value in values)
    return scalars.create_once(("constant pair", high, low), "mov.b32", Imm(high << HALF_BITS | low))
