"""Further integer instructions: 24-bit products, dot products, masks, SIMD within a register, and sums with a carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import TYPES, Array, clamp_integer, multiply_high
from tilec.emu.scalar.semantics import build_elementwise_step, decode_elementwise, decode_same_type, view_parts

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


@register_decoder("mul24", "mad24", accepts="lo sat")
def _decode_product24(form: Form) -> None:
    """Decode `mul24` and `mad24` into an elementwise step on 24-bit numbers."""
    view = form.parse_type()
    is_high = form.has("hi")

    def sign_extend_24(values: Array) -> Array:
        """Return the low 24 bits of numbers, with their sign for signed types."""
        wide = (values.astype(np.int64) & 0xFFFFFF).astype(np.int64)
        return np.where(wide & 0x800000, wide - 0x1000000, wide) if view.kind == "s" else wide

    def multiply_24(a: Array, b: Array, *addend: Array) -> Array:
        """Return the low 32 bits, or those above bit 16, of 24-bit products, plus the addend."""
        product = sign_extend_24(a) * sign_extend_24(b)
        part = product >> 16 if is_high else product
        part = ((part & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000 if view.kind == "s" else part & 0xFFFFFFFF
        total = part + addend[0] if addend else part
        return clamp_integer(total, view.dtype) if form.has("sat") else total.astype(view.dtype)

    decode_same_type(form, multiply_24)


@register_decoder("dp2a", accepts="lo")
def _decode_dp2a(form: Form) -> None:
    """Decode `dp2a` into a step that adds a dot product of two 16-bit numbers with two bytes of a word to a sum."""
    left, right = form.types[-2], form.types[-1]
    first = 2 if form.has("hi") else 0

    def dot_halves(a: Array, b: Array, c: Array) -> Array:
        """Return `c` plus the products of both halves of `a` with the chosen two bytes of `b`."""
        halves, parts = view_parts(a, left, 2), view_parts(b, right, 4)
        total: Array = (halves.astype(np.int64) * parts[:, first : first + 2]).sum(axis=1) + c
        return total.astype(np.uint32)

    decode_elementwise(form, dot_halves, "b32", "b32", "b32", "s32" if "s" in left[0] + right[0] else "u32")


@register_decoder("szext", accepts="clamp")
def _decode_szext(form: Form) -> None:
    """Decode `szext` into an elementwise step that extends the low bits of a word with zeros or their sign."""
    view = form.parse_type()
    wraps = form.has("wrap")

    def extend_field(a: Array, width: Array) -> Array:
        """Return the low `width` bits of words, extended with zeros or the field's sign; the width wraps or clamps at
        32."""
        count = (width & np.uint32(31) if wraps else np.minimum(width, np.uint32(32))).astype(np.int64)
        wide = a.astype(np.int64) & 0xFFFFFFFF
        field = wide & ((np.int64(1) << count) - 1)
        if view.kind == "s":
            sign = (count > 0) & ((wide >> np.maximum(count - 1, 0)) & 1 == 1)
            field = np.where(sign, field - (np.int64(1) << count), field)
        return field.astype(view.dtype)

    decode_elementwise(form, extend_field, view.name, view.name, "u32")


@register_decoder("bmsk", accepts="clamp")
def _decode_bmsk(form: Form) -> None:
    """Decode `bmsk` into an elementwise step that makes a mask from a start and a width."""
    wraps = form.has("wrap")

    def make_mask(start: Array, width: Array) -> Array:
        """Return words with `width` ones from bit `start` on; both wrap, or clamp at 32."""
        if wraps:
            start, width = start & np.uint32(31), width & np.uint32(31)
        first, count = np.minimum(start, 32).astype(np.uint64), np.minimum(width, 32).astype(np.uint64)
        bits = ((np.uint64(1) << count) - np.uint64(1)) << first
        return (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    decode_elementwise(form, make_mask, "b32", "u32", "u32")


@register_decoder("fns")
def _decode_fns(form: Form) -> None:
    """Decode `fns` into an elementwise step that finds the n-th set bit of a mask."""

    def find_set_bits(mask: Array, base: Array, offset: Array) -> Array:
        """Return, for each thread, the position of the n-th set bit of its mask from its base on."""
        rows = zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
        return np.array([_find_nth_set_bit(bits, start, count) for bits, start, count in rows], np.uint32)

    decode_elementwise(form, find_set_bits, "b32", "b32", "u32", "s32")


def _find_nth_set_bit(mask: int, base: int, offset: int) -> int:
    """Return the position of the n-th set bit from `base` on, downwards for a negative n, all ones if there is none.
    For n = 0 it is `base`, if that bit is set."""
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    positions = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [position for position in positions if mask >> position & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF


# -- SIMD within a register --------------------------------------------------------------------------------------------

_LANE_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vavrg": lambda a, b: (a + b + 1) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


@register_decoder(*(f"{name}{lanes}" for name in _LANE_OPERATIONS for lanes in (2, 4)), accepts="add sat")
def _decode_simd(form: Form) -> None:
    """Decode `vadd2`, `vmin4` and their like into a step on two or four lanes of a register; fault unless it has three
    types."""
    count = int(form.stem[-1])
    operation = _LANE_OPERATIONS[form.stem[:-1]]
    if len(form.types) != 3:
        raise form.unsupported("three types are needed")
    result, left, right = form.types
    result_type = np.dtype(f"{'i' if result[0] == 's' else 'u'}{4 // count}")
    target = form.write(form.operands[0], "b32")
    slots = [form.read(operand, "b32") for operand in form.operands[1:]]

    def combine_lanes(a: Array, b: Array, *rest: Array) -> Array:
        """Return the lanes combined and packed, saturated with `.sat`; with `.add` their sum plus the third operand."""
        lanes = operation(view_parts(a, left, count).astype(np.int64), view_parts(b, right, count).astype(np.int64))
        if form.has("add"):
            total: Array = lanes.sum(axis=1) + rest[0]
            return total.astype(np.uint32)
        if form.has("sat"):
            lanes = clamp_integer(lanes, result_type)
        return np.ascontiguousarray(lanes.astype(result_type)).view(np.uint32).reshape(-1)

    form.step.run = build_elementwise_step(combine_lanes, target, slots)


# -- sums with a carry ------------------------------------------------------------------------------------------------


def _add_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """Return the sum of unsigned numbers with a carry in, and the carry out."""
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _subtract_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """Return the difference of unsigned numbers with a borrow in, and the borrow out."""
    partial = a - b
    total = partial - borrow
    return total, (a < b) | (partial < borrow)


def _decode_with_carry(
    form: Form, operation: Callable[..., tuple[Array, Array]], *, reads_carry: bool, signed_sources: bool = False
) -> None:
    """Decode an instruction into a step that computes `operation` of its operands and the carry, and may set the
    carry."""
    view = form.parse_type()
    # Signed and unsigned sums have the same bits; the carry is the unsigned one.
    unsigned = f"u{view.bits}"
    target = form.write(form.operands[0], unsigned)
    types = [view.name if signed_sources else unsigned] * 2 + [unsigned]
    slots = [form.read(operand, name) for operand, name in zip(form.operands[1:], types, strict=False)]
    flag = form.program.find_slot(form.program.place_helper("carry", "pred"), TYPES["pred"])
    writes_carry = form.has("cc") or form.stem.endswith(".cc")
    dtype = TYPES[unsigned].dtype

    @form.set_run
    def run_with_carry(cta: Cta, threads: Threads) -> None:
        """Write the result for these threads, and the carry out where the opcode sets it."""
        views = cta.views
        values = [views[slot][threads] for slot in slots]
        carry = views[flag][threads].astype(dtype) if reads_carry else np.zeros(len(values[0]), dtype)
        total, out = operation(*values, carry)
        views[target][threads] = total
        if writes_carry:
            views[flag][threads] = out


@register_decoder("add.cc", "addc", "sub.cc", "subc")
def _decode_carry_sum(form: Form) -> None:
    """Decode `add.cc`, `addc`, `sub.cc` and `subc` into a step that sets the carry, reads it, or both."""
    operation = _add_with_carry if form.stem.startswith("add") else _subtract_with_borrow
    _decode_with_carry(form, operation, reads_carry=not form.stem.endswith(".cc"))


@register_decoder("mad.lo.cc", "mad.hi.cc", "madc", accepts="lo")
def _decode_madc(form: Form) -> None:
    """Decode `mad.lo.cc`, `mad.hi.cc` and `madc` into a step that adds a product to a sum with carry."""
    is_high = form.has("hi") or form.stem == "mad.hi.cc"

    def multiply_add(a: Array, b: Array, c: Array, carry: Array) -> tuple[Array, Array]:
        """Return the low or high half of a product plus `c` and the carry, and the carry out."""
        product = multiply_high(a, b) if is_high else a * b
        return _add_with_carry(np.ascontiguousarray(product).view(c.dtype), c, carry)

    _decode_with_carry(form, multiply_add, reads_carry=form.stem == "madc", signed_sources=True)
