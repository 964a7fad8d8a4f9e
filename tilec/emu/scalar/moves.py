"""Decoders of moves and of conversions of addresses between state spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import TIMER_REGISTERS
from tilec.emu.memory import memory
from tilec.emu.numbers import TYPES, Array, PtxType
from tilec.emu.scalar.semantics import build_elementwise_step, decode_elementwise, decode_same_type
from tilec.ptx.module import Imm, Operand, Reg, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


@register_decoder("mov")
def _decode_mov(form: Form) -> None:
    """Decode `mov` into a step that copies a register or constant, joins or splits a vector, or reads a timer."""
    destination, source = form.operands
    if form.has("b128"):
        # A register of 128 bits is a vector of two.
        _decode_pair_move(form, destination, source)
        return
    view = form.parse_type()
    if isinstance(source, Vector):
        _decode_pack(form, view, source)
        return
    if isinstance(destination, Vector):
        _decode_unpack(form, view, destination)
        return
    if isinstance(source, Reg) and source.name in TIMER_REGISTERS:
        _decode_timer_read(form, view)
        return
    name = view.name if view.kind == "pred" else f"b{view.bits}"
    # An immediate is read in the instruction's type, also where the register is untyped.
    slot = form.read(source, name if isinstance(source, Reg) else view.name)
    target = form.write(destination, name if isinstance(source, Reg) else view.name)

    @form.set_run
    def run_mov(cta: Cta, threads: Threads) -> None:
        """Copy the source to the destination register for these threads."""
        views = cta.views
        views[target][threads] = views[slot][threads]


def _decode_pair_move(form: Form, destination: Operand, source: Operand) -> None:
    """Decode `mov.b128` into a step that copies two registers of 64 bits; fault unless both operands are pairs."""
    if not isinstance(destination, Vector) or not isinstance(source, Vector) or len(destination.items) != 2:
        raise form.unsupported("halves of 128 bits")
    targets = [form.write(item, "b64") for item in destination.items]
    slots = [form.read(item, "b64") for item in source.items]

    @form.set_run
    def run_pair_move(cta: Cta, threads: Threads) -> None:
        """Copy both halves for these threads, read before either is written."""
        values = [cta.views[slot][threads].copy() for slot in slots]
        for target, value in zip(targets, values, strict=True):
            cta.views[target][threads] = value


def _decode_timer_read(form: Form, view: PtxType) -> None:
    """Decode `mov` from `%clock`, `%globaltimer` or their halves into a step that advances and reads the launch's
    clock."""
    target = form.write(form.operands[0], f"u{view.bits}")
    source = form.operands[1]
    shift = 32 if isinstance(source, Reg) and source.name.endswith("_hi") else 0

    @form.set_run
    def run_timer_read(cta: Cta, threads: Threads) -> None:
        """Advance the launch's clock by 1000 and write it, or its upper word, to the destination."""
        # Time must advance: library wait loops read it.
        cta.launch.clock += 1000
        cta.views[target][threads] = (cta.launch.clock >> shift) & ((1 << min(view.bits, 63)) - 1)


def _split_type(view: PtxType, count: int, form: Form) -> PtxType:
    """Return the untyped PTX type of each of `count` equal parts of a type; fault on parts below 8 bits."""
    if view.bits % count or view.bits // count < 8:
        raise form.unsupported(f"{count} parts")
    return TYPES[f"b{view.bits // count}"]


def _decode_pack(form: Form, view: PtxType, source: Vector) -> None:
    """Decode `mov` of a vector into a step that joins its elements in one register, lowest first."""
    part = _split_type(view, len(source.items), form)
    target = form.write(form.operands[0], f"b{view.bits}")
    slots = [form.read(item, part.name) for item in source.items]
    whole = np.dtype(f"u{view.bits // 8}")

    @form.set_run
    def run_pack(cta: Cta, threads: Threads) -> None:
        """Join the elements, lowest first, and write them to the register."""
        views = cta.views
        result = views[slots[0]][threads].astype(whole)
        for position, slot in enumerate(slots[1:], start=1):
            result |= views[slot][threads].astype(whole) << whole.type(position * part.bits)
        views[target][threads] = result


def _decode_unpack(form: Form, view: PtxType, destination: Vector) -> None:
    """Decode `mov` to a vector into a step that splits one register into its elements, lowest first."""
    part = _split_type(view, len(destination.items), form)
    source = form.read(form.operands[1], f"b{view.bits}")
    targets = [form.write(item, part.name) for item in destination.items]
    whole = np.dtype(f"u{view.bits // 8}")

    @form.set_run
    def run_unpack(cta: Cta, threads: Threads) -> None:
        """Split the register and write its parts to the elements, lowest first."""
        views = cta.views
        value = views[source][threads].copy()
        for position, target in enumerate(targets):
            views[target][threads] = (value >> whole.type(position * part.bits)).astype(part.dtype)


# -- addresses ---------------------------------------------------------------------------------------------------------

_OFFSET_WINDOWS = {"shared": memory.SHARED_WINDOW, "local": memory.LOCAL_WINDOW}
"""Spaces whose addresses become generic by adding a base; addresses of other spaces are generic already."""


@register_decoder("cvta")
def _decode_cvta(form: Form) -> None:
    """Decode `cvta` from a state space's address to a generic one, or back with `.to`; fault without a state space."""
    view = form.parse_type()
    spaces = ("global", "const", "param", "param::entry", "shared", "shared::cta", "shared::cluster", "local")
    space = form.find_modifier(*spaces)
    if not space:
        raise form.unsupported("no state space")
    if space.startswith("param"):
        _decode_cvta_param(form, view)
        return
    window = view.dtype.type(_OFFSET_WINDOWS.get(space.partition("::")[0], 0))
    decode_same_type(form, (lambda a: a - window) if form.has("to") else (lambda a: a + window))


def _decode_cvta_param(form: Form, view: PtxType) -> None:
    """Decode 64-bit `cvta` of a parameter's address into a step: a kernel's are in a window, a call's in local
    memory."""
    if view.bits != 64:
        raise form.unsupported("an address of 32 bits")
    local, params, calls = (np.uint64(base) for base in (memory.LOCAL_WINDOW, memory.PARAM_WINDOW, memory.CALL_PARAMS))
    if form.has("to"):
        decode_same_type(form, lambda a: np.where(a >= local, a - local + calls, a - params))
    else:
        decode_same_type(form, lambda a: np.where(a >= calls, a - calls + local, a + params))


_GLOBAL_WINDOWS = dict.fromkeys(("global", "const"), memory.GLOBAL_BASE)
_SPACE_WINDOWS = {**_GLOBAL_WINDOWS, "param": memory.PARAM_WINDOW, **_OFFSET_WINDOWS}


@register_decoder("isspacep", accepts="global const local shared shared::cta shared::cluster param param::entry")
def _decode_isspacep(form: Form) -> None:
    """Decode `isspacep` into a step that tests whether a generic address lies in a state space."""
    space = form.modifiers[0]
    window = np.uint64(_SPACE_WINDOWS[space.partition("::")[0]] >> memory.WINDOW_SHIFT)
    # Only the block's own memory is shared::cta: addresses without a rank, or with the block's own.
    target, source = form.write(form.operands[0], "pred"), form.read(form.operands[1], "u64")

    @form.set_run
    def run_isspacep(cta: Cta, threads: Threads) -> None:
        """Write whether each address lies in the space's window; shared memory must be the block's own."""
        address = cta.views[source][threads]
        inside = (address >> np.uint64(memory.WINDOW_SHIFT)) == window
        if space in ("shared", "shared::cta"):
            rank = (address & np.uint64(0xFFFFFFFF)) >> np.uint64(memory.SHARED_RANK_SHIFT)
            inside &= (rank == 0) | (rank == cta.rank + 1)
        cta.views[target][threads] = inside


@register_decoder("mapa", accepts="shared::cluster")
def _decode_mapa(form: Form) -> None:
    """Decode `mapa` into an elementwise step that moves a shared address to another block of the cluster."""
    view = form.parse_type()
    mask = (1 << memory.SHARED_RANK_SHIFT) - 1

    def map_address(address: Array, rank: Array) -> Array:
        """Return shared addresses with the block's rank in their upper bits."""
        word = view.dtype.type
        window = address & ~word(0xFFFFFFFF) if view.bits == 64 else word(0)
        in_cluster = (rank.astype(view.dtype) + word(1)) << word(memory.SHARED_RANK_SHIFT)
        mapped: Array = window | (address & word(mask)) | in_cluster
        return mapped

    decode_elementwise(form, map_address, view.name, view.name, "u32")


@register_decoder("getctarank", accepts="shared::cluster")
def _decode_getctarank(form: Form) -> None:
    """Decode `getctarank` into a step that writes the rank of the block that a shared address belongs to."""
    target = form.write(form.operands[0], "u32")
    source = form.read(form.operands[1], form.parse_type().name)

    @form.set_run
    def run_getctarank(cta: Cta, threads: Threads) -> None:
        """Write the rank in each address, or this block's rank where it has none."""
        low = cta.views[source][threads].astype(np.int64) & 0xFFFFFFFF
        rank = low >> memory.SHARED_RANK_SHIFT
        cta.views[target][threads] = np.where(rank == 0, cta.rank, rank - 1)


@register_decoder(
    "createpolicy", *(f"createpolicy.{kind}" for kind in ("fractional", "range", "cvt")), accepts="global L2"
)
def _decode_createpolicy(form: Form) -> None:
    """Decode `createpolicy` into a step that writes 0: cache policies change nothing here."""
    target = form.write(form.operands[0], "b64")
    slot = form.read(Imm(0), "b64")
    form.step.run = build_elementwise_step(lambda a: a, target, [slot])
