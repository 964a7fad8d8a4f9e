"""Extended-precision arithmetic: add, sub and mad with the carry in the condition code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import Form, register_decoder
from tilec.emu.numbers import TYPES, Array, multiply_high

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads


def _add_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _subtract_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    # The condition code holds the borrow.
    partial = a - b
    total = partial - borrow
    return total, (a < b) | (partial < borrow)


def _build_carry_step(
    form: Form, operation: Callable[..., tuple[Array, Array]], reads_carry: bool, signed_sources: bool = False
) -> None:
    view = form.parse_type()
    # Signed and unsigned sums have the same bits; the carry is the unsigned one.
    unsigned = f"u{view.bits}"
    target = form.write(form.operands[0], unsigned)
    sources = form.operands[1:]
    slots = [
        form.read(operand, view.name if signed_sources and i < 2 else unsigned) for i, operand in enumerate(sources)
    ]
    flag = form.program.find_slot(form.program.place_carry(), TYPES["pred"])
    writes_carry = form.has("cc") or form.stem.endswith(".cc")
    dtype = np.dtype(unsigned[0] + str(view.bits // 8))

    def run_step(cta: Cta, threads: Threads) -> None:
        views = cta.views
        values = [views[slot][threads] for slot in slots]
        carry = views[flag][threads].astype(dtype) if reads_carry else np.zeros(len(values[0]), dtype)
        total, out = operation(*values, carry)
        views[target][threads] = total
        if writes_carry:
            views[flag][threads] = out

    form.step.run = run_step


@register_decoder("add.cc", "addc")
def _decode_addc(form: Form) -> None:
    _build_carry_step(form, _add_with_carry, form.stem == "addc")


@register_decoder("sub.cc", "subc")
def _decode_subc(form: Form) -> None:
    _build_carry_step(form, _subtract_with_borrow, form.stem == "subc")


@register_decoder("mad.lo.cc", "mad.hi.cc", "madc", accepts="lo")
def _decode_madc(form: Form) -> None:
    is_high = form.has("hi") or form.stem == "mad.hi.cc"

    def multiply_add(a: Array, b: Array, c: Array, carry: Array) -> tuple[Array, Array]:
        product = multiply_high(a, b) if is_high else a * b
        return _add_with_carry(np.ascontiguousarray(product).view(c.dtype), c, carry)

    _build_carry_step(form, multiply_add, form.stem == "madc", signed_sources=True)
