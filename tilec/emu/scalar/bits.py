"""Logic, shifts and bit fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import Array, divide_truncating
from tilec.emu.scalar.semantics import build_elementwise_step, decode_elementwise, decode_same_type, read_predicate
from tilec.ptx.module import Pair

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


_UNIFORM_OPERATIONS: dict[str, Callable[..., Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
    "rem": lambda a, b: divide_truncating(a, b)[1],
    "sad": lambda a, b, c: np.where(a > b, a - b, b - a) + c,
    "copysign": lambda sign, value: np.copysign(value, sign),
}
"""Operations whose result and sources have the opcode's only type, and which no modifier changes."""


@register_decoder(*_UNIFORM_OPERATIONS)
def _decode_uniform(form: Form) -> None:
    """Decode an instruction whose sources and result have one type, such as `and`, `rem` or `sad`, into its numpy
    function."""
    decode_same_type(form, _UNIFORM_OPERATIONS[form.stem])


@register_decoder("shl", "shr")
def _decode_shift(form: Form) -> None:
    """Decode `shl` and `shr` into an elementwise step that shifts by the second operand."""
    view = form.parse_type()
    limit = np.uint32(view.bits)
    is_left = form.stem == "shl"

    def shift_bits(a: Array, amount: Array) -> Array:
        """Shift numbers by an amount each; the width or more gives zero, or copies of the sign."""
        clamped = np.minimum(amount, limit - np.uint32(1)).astype(a.dtype)
        shifted: Array = np.left_shift(a, clamped) if is_left else np.right_shift(a, clamped)
        if view.kind == "s" and not is_left:
            return shifted
        return np.where(amount >= limit, np.array(0, a.dtype), shifted)

    decode_elementwise(form, shift_bits, view.name, view.name, "u32")


@register_decoder("shf", accepts="r clamp")
def _decode_funnel(form: Form) -> None:
    """Decode `shf` into an elementwise step that shifts the 64 bits of two registers and keeps one word."""
    is_left, wraps = form.has("l"), form.has("wrap")

    def funnel_shift(low: Array, high: Array, amount: Array) -> Array:
        """Shift the 64 bits of two words left or right, and return the upper or lower word; amounts wrap or clamp at
        32."""
        count = (amount & np.uint32(31) if wraps else np.minimum(amount, np.uint32(32))).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        return ((both << count) >> np.uint64(32) if is_left else both >> count).astype(np.uint32)

    decode_elementwise(form, funnel_shift, "b32", "b32", "b32", "u32")


@register_decoder("popc", "clz", "brev", "bfind", accepts="shiftamt")
def _decode_bit_count(form: Form) -> None:
    """Decode `popc`, `clz`, `brev` and `bfind` into an elementwise step that counts, reverses or finds bits."""
    view = form.parse_type()
    unsigned = f"b{view.bits}"

    def unpack_bits(a: Array) -> Array:
        """Return the bits of numbers, [number, bit], lowest first."""
        parts = np.ascontiguousarray(a).view(np.uint8).reshape(-1, view.bits // 8)
        return np.unpackbits(parts, axis=1, bitorder="little")

    def count_ones(a: Array) -> Array:
        """Return how many bits of each number are set."""
        count: Array = unpack_bits(a).sum(axis=1)
        return count.astype(np.uint32)

    def count_leading_zeros(a: Array) -> Array:
        """Return how many zeros stand above the highest set bit of each number, the width for zero."""
        bits = unpack_bits(a)[:, ::-1]
        return np.where(bits.any(axis=1), bits.argmax(axis=1), view.bits).astype(np.uint32)

    def reverse_bits(a: Array) -> Array:
        """Return numbers with the order of their bits reversed."""
        return np.packbits(unpack_bits(a)[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(-1)

    def find_leading_bit(a: Array) -> Array:
        """Return the position of the highest bit that differs from the sign, or its shift amount; all ones if none
        does."""
        magnitude = np.where(a >> a.dtype.type(view.bits - 1), ~a, a) if view.kind == "s" else a
        zeros = count_leading_zeros(magnitude)
        found = zeros if form.has("shiftamt") else np.uint32(view.bits - 1) - zeros
        return np.where(zeros == view.bits, np.uint32(0xFFFFFFFF), found)

    table = {"popc": count_ones, "clz": count_leading_zeros, "brev": reverse_bits, "bfind": find_leading_bit}
    decode_elementwise(form, table[form.stem], unsigned if form.stem == "brev" else "u32", unsigned)


@register_decoder("bfe")
def _decode_extract(form: Form) -> None:
    """Decode `bfe` into an elementwise step that extracts a bit field, with zeros or its sign above."""
    view = form.parse_type()
    bits = view.bits
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)

    def extract_field(a: Array, start: Array, length: Array) -> Array:
        """Return `length` bits from bit `start` on, extended with zeros, or for signed types with the field's sign."""
        first, count = (start & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        wide = a.astype(np.uint64)
        mask = np.where(count >= 64, ones, ~(ones << np.minimum(count, 63).astype(np.uint64)))
        field = np.where(first < bits, wide >> np.minimum(first, 63).astype(np.uint64), np.uint64(0)) & mask
        if view.kind == "s":
            last = np.minimum(first + count - 1, bits - 1)
            sign = (wide >> np.clip(last, 0, 63).astype(np.uint64)) & np.uint64(1)
            kept = np.where(first < bits, np.clip(np.minimum(count, bits - first), 0, 64), 0)
            above = np.where(kept >= 64, np.uint64(0), ones << np.minimum(kept, 63).astype(np.uint64))
            field = np.where((sign == 1) & (count > 0), field & ~above | above, field)
        return field.astype(a.dtype)

    decode_elementwise(form, extract_field, f"b{bits}", f"b{bits}", "u32", "u32")


@register_decoder("bfi")
def _decode_insert(form: Form) -> None:
    """Decode `bfi` into an elementwise step that inserts a bit field into another number."""
    view = form.parse_type()
    bits = view.bits

    def insert_field(a: Array, b: Array, start: Array, length: Array) -> Array:
        """Return `b` with `length` bits from bit `start` on replaced by the low bits of `a`."""
        first, count = (start & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        position = np.arange(bits)
        chosen = (position >= first[:, None]) & (position < (first + count)[:, None])
        mask = np.where(chosen, np.uint64(1) << position.astype(np.uint64), np.uint64(0)).sum(axis=1, dtype=np.uint64)
        shifted = np.where(first < bits, a.astype(np.uint64) << np.minimum(first, 63).astype(np.uint64), np.uint64(0))
        merged: Array = (shifted & mask) | (b.astype(np.uint64) & ~mask)
        return merged.astype(b.dtype)

    decode_elementwise(form, insert_field, view.name, view.name, view.name, "u32", "u32")


@register_decoder("lop3")
def _decode_lop3(form: Form) -> None:
    """Decode `lop3` into a step that combines words by a truth table, and may test into a predicate; refuse other
    operands."""
    table = form.parse_constant(form.operands[4])
    destination = form.operands[0]
    operation = form.find_modifier("and", "or")
    if bool(operation) != isinstance(destination, Pair) or bool(operation) != (len(form.operands) == 6):
        raise form.unsupported("these operands")
    target, test_slot = form.write_pair(destination, "b32")
    extra, is_negated = read_predicate(form, form.operands[5]) if operation else (-1, False)
    slots = [form.read(operand, "b32") for operand in form.operands[1:4]]

    def combine_bits(a: Array, b: Array, c: Array) -> Array:
        """Return each bit as the truth table gives it for the three source bits."""
        result = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    if not operation:
        form.step.run = build_elementwise_step(combine_bits, target, slots)
        return

    @form.set_run
    def run_lop3(cta: Cta, threads: Threads) -> None:
        """Write the combined bits, and a predicate: whether they are nonzero, and- or or-combined with the source
        predicate."""
        views = cta.views
        result = combine_bits(*[views[slot][threads] for slot in slots])
        other = views[extra][threads] ^ is_negated
        views[target][threads] = result
        views[test_slot][threads] = (result != 0) & other if operation == "and" else (result != 0) | other


_PRMT_MODES: dict[str, Callable[[int, int], int]] = {
    "f4e": lambda position, start: start + position,
    "b4e": lambda position, start: (start - position) % 8,
    "rc8": lambda position, start: start,
    "ecl": lambda position, start: max(position, start),
    "ecr": lambda position, start: min(position, start),
    "rc16": lambda position, start: position % 2 + 2 * (start % 2),
}
"""The source byte (of eight) for a position, given the low two bits of the selector."""


@register_decoder("prmt")
def _decode_permute(form: Form) -> None:
    """Decode `prmt` into an elementwise step that picks four of the eight bytes of two registers."""
    mode = form.find_modifier(*_PRMT_MODES)
    table = np.array([[_PRMT_MODES[mode](p, start) & 7 for p in range(4)] for start in range(4)]) if mode else None

    def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
        """Return four bytes picked from the eight of `b` and `a` by the selector, by nibble or by mode; a nibble's top
        bit copies the sign."""
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros_like(a)
        for index in range(4):
            if table is not None:
                nibble = table[(selector & np.uint32(3)).astype(np.int64), index].astype(np.uint32)
            else:
                nibble = (selector >> np.uint32(4 * index)) & np.uint32(15)
            shift = (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)
            byte = ((both >> shift) & np.uint64(0xFF)).astype(np.uint32)
            sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * index)
        return result

    decode_elementwise(form, permute_bytes, "b32", "b32", "b32", "u32")
