"""Tensor maps that a kernel builds: `tensormap.replace`, and the copy that publishes the result.

A map under construction lies in shared or global memory, starts as 128 zero bytes and is filled in field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.access import select_store
from tilec.emu.memory.memory import SHARED_WINDOW, WINDOW_SHIFT
from tilec.emu.tma.tensormap import MAP_BYTES, MAP_FIELDS, MAP_MAGIC

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

_CHUNKS = np.arange(8, dtype=np.int64)


@register_decoder("tensormap.replace", accepts="tile shared::cta global b1024")
def _decode_replace(form: Form) -> None:
    """Decode `tensormap.replace` into a step that sets one field of a map under construction; refuse an unknown
    field."""
    field = form.find_modifier(*MAP_FIELDS)
    if not field or not form.has("tile"):
        raise form.unsupported("this field")
    offset, width, count = MAP_FIELDS[field]
    operands = form.operands
    ordinal = 0
    if count > 1:
        ordinal, operands = form.parse_constant(operands[1]), (operands[0], *operands[2:])
    if not 0 <= ordinal < count:
        raise form.unsupported(f"dimension {ordinal}")
    pointer = form.build_address(operands[0])
    value_slot = form.read(operands[1], "u64" if form.has("b64") else "u32")
    start = offset + width * ordinal
    store = select_store(form)

    @form.set_run
    def run_replace(cta: Cta, threads: Threads) -> None:
        """Store the field's bytes, and the mark of a map, at each thread's map address; fault if it is misaligned."""
        addresses = pointer(cta, threads)
        if (addresses & 63).any():
            raise Fault("misaligned", f"a tensor map at {int(addresses[0]):#x}, which is not a multiple of 64")
        values = cta.views[value_slot][threads].astype(np.uint64)
        magic = np.full(len(addresses), int.from_bytes(MAP_MAGIC, "little"), np.uint64)
        store(cta, threads, addresses, 8, magic)
        for part in range(width):
            byte = (values >> np.uint64(8 * part)).astype(np.uint8)
            store(cta, threads, addresses + start + part, 1, byte)


@register_decoder(
    "tensormap.cp_fenceproxy", accepts="global shared::cta tensormap::generic release acq_rel cta cluster gpu sys"
)
def _decode_copy(form: Form) -> None:
    """Decode `tensormap.cp_fenceproxy` of 128 bytes into a step that publishes a tensor map from shared to global
    memory."""
    if form.parse_constant(form.operands[2]) != MAP_BYTES:
        raise form.unsupported("a size other than 128")
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])

    @form.set_run
    def run_copy(cta: Cta, threads: Threads) -> None:
        """Copy the warp's 128 bytes to global memory, as a write of all its lanes; fault if their addresses differ."""
        # The warp copies together; its lanes name the same two addresses.
        to, origin = destination(cta, threads), source(cta, threads)
        if (to != to[0]).any() or (origin != origin[0]).any():
            raise Fault("bad-descriptor", "the addresses of tensormap.cp_fenceproxy differ between the lanes of a warp")
        start = int(origin[0])
        if start >> WINDOW_SHIFT == SHARED_WINDOW >> WINDOW_SHIFT:
            start -= SHARED_WINDOW
        data = cta.shared.load(start + 16 * _CHUNKS, 16)
        memory, actors = cta.launch.memory, cta.actors[threads]
        memory.store(int(to[0]) + 16 * _CHUNKS, 16, data, np.repeat(actors[:1], len(_CHUNKS)))
        if memory.race_detector is not None:
            start = memory.find_offset(int(to[0]), MAP_BYTES, "the tensor map")
            memory.race_detector.share_writes(actors, start, MAP_BYTES)


@register_decoder("fence.proxy.tensormap::generic", accepts="acquire release cta cluster gpu sys")
def _decode_fence(form: Form) -> None:
    """Decode `fence.proxy.tensormap` into a step that records an acquire of tensor maps, or a release."""
    # A map is read when a copy is issued, so it is never stale here: the fence only must be there.
    pointer = form.build_address(form.operands[0]) if form.has("acquire") else None

    @form.set_run
    def run_fence(cta: Cta, threads: Threads) -> None:
        """Record the fence for these threads: an acquire of the maps at their addresses, or a release. A map is read
        when a copy is issued, so it is never stale."""
        if cta.order is not None:
            addresses = set(pointer(cta, threads).tolist()) if pointer is not None else None
            cta.order.fence_maps(cta.actors[threads], addresses)
