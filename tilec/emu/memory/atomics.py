"""atom and red: every operation on every type, single, packed, in vectors and on 128 bits.

Scopes and orders make no difference to the result: memory is one, and each step ends before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.access import ACCESS_MODIFIERS, POLL_COST, select_load, select_store
from tilec.emu.memory.memory import WORD_TYPES
from tilec.emu.numbers import REDUCTIONS, PtxType, bf16_to_f32, f32_to_bf16
from tilec.emu.scalar.semantics import compose_conversions, select_float_extreme
from tilec.ptx.module import Operand, Reg, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


def select_atomic_function(operation: str, view: PtxType) -> Callable[[Any, Any, Any], Any]:
    """Return the function of an atomic operation from the old value, the operand and cas's second operand to the new
    value."""

    if operation == "exch":
        return lambda old, b, c: b
    if operation == "cas":
        return lambda old, b, c: np.where(old == b, c, old)
    function = REDUCTIONS[operation]
    if view.kind in ("f", "bf16") and operation in ("min", "max"):
        function = select_float_extreme(operation, False)
    if view.kind == "bf16":
        function = compose_conversions(function, bf16_to_f32, f32_to_bf16)
    return lambda old, b, c: function(old, b)


@register_decoder("atom", "red", accepts=f"{ACCESS_MODIFIERS} noftz")
def _decode_atomic(form: Form) -> None:
    """Decode `atom` and `red`, in vectors too, into a step that updates memory; an opcode without operation is
    unsupported."""
    operation = form.find_modifier(*REDUCTIONS, "exch", "cas")
    if not operation:
        raise form.unsupported("no operation")
    if form.has("b128"):
        _decode_atomic_128(form, operation)
        return
    view = form.parse_type()
    load, store = select_load(form), select_store(form)
    returns = form.stem == "atom"
    lanes = {"v2": 2, "v4": 4, "v8": 8}.get(form.find_modifier("v2", "v4", "v8"), 1)
    operands = form.operands if returns else (Reg("_"), *form.operands)
    targets = [form.write(item, view.name) for item in _list_operand_registers(form, operands[0], lanes, returns)]
    pointer = form.step.polled_address = form.build_address(operands[1])
    if operation in ("cas", "exch"):
        form.step.cost = POLL_COST
    b_slots = [form.read(item, view.name) for item in _list_operand_registers(form, operands[2], lanes, True)]
    # After the operands may stand a cache policy.
    c_slots = [form.read(operands[3], view.name)] if operation == "cas" else b_slots
    combine = select_atomic_function(operation, view)
    width = view.bits // 8

    @form.set_run
    def run_atomic(cta: Cta, threads: Threads) -> None:
        """Update memory for each thread, in thread order where addresses coincide, and for `atom` write the old
        values."""
        addresses = pointer(cta, threads)
        members = cta.thread_ids[threads]
        is_alone = len(np.unique(addresses)) == len(addresses)
        # Threads at one address execute one after the other, in the order of their numbers.
        selections = [slice(None)] if is_alone else [slice(at, at + 1) for at in range(len(addresses))]
        for lane, (b_slot, c_slot) in enumerate(zip(b_slots, c_slots, strict=True)):
            b, c = cta.views[b_slot][threads], cta.views[c_slot][threads]
            old = np.empty_like(b)
            at = addresses + lane * width
            for selection in selections:
                seen = load(cta, members[selection], at[selection], width).view(view.dtype).reshape(b[selection].shape)
                old[selection] = seen
                new = np.ascontiguousarray(combine(seen, b[selection], c[selection]), dtype=view.dtype)
                store(cta, members[selection], at[selection], width, new.view(WORD_TYPES[width]).reshape(-1))
            if returns:
                cta.views[targets[lane]][threads] = old


def _list_operand_registers(form: Form, operand: Operand, lanes: int, is_used: bool) -> tuple[Operand, ...]:
    """Return the registers of an operand, one for each lane, or `_` for each if unused; fault on another number."""
    items: tuple[Operand, ...] = operand.items if isinstance(operand, Vector) else (operand,)
    if not is_used or operand == Reg("_"):
        return (Reg("_"),) * lanes
    if len(items) != lanes:
        raise form.unsupported(f"{len(items)} registers instead of {lanes}")
    return items


def _decode_atomic_128(form: Form, operation: str) -> None:
    """Decode `atom.exch.b128` and `atom.cas.b128`, with pairs of registers, into a step; other operations are
    unsupported."""
    if operation not in ("exch", "cas") or form.stem != "atom":
        raise form.unsupported("this operation")
    load, store = select_load(form), select_store(form)
    targets = [form.write(item, "b64") for item in _list_operand_registers(form, form.operands[0], 2, True)]
    pointer = form.build_address(form.operands[1])
    values = [_list_operand_registers(form, operand, 2, True) for operand in form.operands[2:4]]
    slots = [[form.read(item, "b64") for item in pair] for pair in values]

    @form.set_run
    def run_atomic_128(cta: Cta, threads: Threads) -> None:
        """Exchange, or compare and swap, 16 bytes for one thread after the other, and write the old values."""
        addresses = pointer(cta, threads)
        members = cta.thread_ids[threads]
        operands = [np.stack([cta.views[slot][threads] for slot in pair], axis=1) for pair in slots]
        old = np.empty((len(addresses), 2), np.uint64)
        for position in range(len(addresses)):
            one = slice(position, position + 1)
            old[one] = load(cta, members[one], addresses[one], 16)
            if operation == "exch":
                store(cta, members[one], addresses[one], 16, operands[0][one])
            elif (old[one] == operands[0][one]).all():
                store(cta, members[one], addresses[one], 16, operands[1][one])
        for lane, target in enumerate(targets):
            cta.views[target][threads] = old[:, lane]
