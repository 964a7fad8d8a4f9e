"""Decoders of tensor memory allocation, by whole warps, and for pairs of blocks by a warp of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import Array
from tilec.emu.tcgen05 import tmem
from tilec.emu.tcgen05.tcgen05 import find_group_blocks, read_cta_group, require_uniform, slice_warp, split_into_warps

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads

_WARP = 32


def _split_off_warp(cta: Cta, group: Group, threads: Threads, name: str) -> Array:
    """Leave the first warp in the group and return it; other warps repeat the step, idle threads go on; fault on part
    of one."""
    first, *others = split_into_warps(cta, threads, name)
    idle = np.setdiff1d(group.indices, cta.thread_ids[threads])
    if len(idle):
        cta.split(group, idle, group.pc + 1)
    for warp in others:
        cta.split(group, warp, group.pc)
    return first


def _wait_for_peer(cta: Cta, group: Group, warp: Array, name: str, columns: int) -> int | None:
    """Return the number of the pair's collective that a warp reached; park it and return None before its peer has. Each
    block numbers its own `name` instructions; different column counts are a fault."""
    mine, peer = (tmem.get_tensor_memory(block) for block in (cta, cta.cluster.ctas[cta.rank ^ 1]))
    key = (int(warp[0]), group.pc)
    entered, met = mine.entered.setdefault(name, []), peer.entered.setdefault(name, [])
    if key not in mine.tickets:
        mine.tickets[key] = len(entered)
        entered.append(columns)
    ticket = mine.tickets[key]
    if len(met) <= ticket:
        group.park(lambda: f"a warp of block {peer.cta.position} to run {name} as well", lambda: len(met) > ticket)
        return None
    if met[ticket] != columns:
        message = f"{name} of {columns} columns, and the peer block asks for {met[ticket]}"
        raise Fault("bad-tmem-allocation", message)
    return ticket


def _find_free_columns(memories: list[tmem.TensorMemory], columns: int) -> int | None:
    """Return the first aligned run of `columns` columns that is free in all of these memories, or None."""
    units = columns // tmem.UNIT
    for start in range(0, tmem.COLUMNS // tmem.UNIT, units):
        if all(memory.is_free[start : start + units].all() for memory in memories):
            return start * tmem.UNIT
    return None


@register_decoder("tcgen05.alloc", accepts="shared::cta")
def _decode_alloc(form: Form) -> None:
    """Decode `tcgen05.alloc` into a step by which a warp, or one of each block of a pair, allocates columns or waits
    for some."""
    form.step.gather = _WARP
    group_size = read_cta_group(form)
    pointer = form.build_address(form.operands[0])
    columns_slot = form.read(form.operands[1], "u32")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Allocate columns for a warp, store their address and return True; or park it for its peer or columns and
        return False."""
        warp = _split_off_warp(cta, group, threads, "tcgen05.alloc")
        columns = require_uniform(cta.views[columns_slot][warp], "the number of columns")
        memory = tmem.get_tensor_memory(cta)
        blocks = [tmem.get_tensor_memory(block) for block in find_group_blocks(cta, group_size)]
        ticket = None
        if (int(warp[0]), group.pc) not in memory.tickets:
            memory.check_request(columns)
        if group_size == 2:
            ticket = _wait_for_peer(cta, group, warp, "tcgen05.alloc", columns)
            if ticket is None:
                return False
        start = memory.granted.pop(ticket, None) if ticket is not None else None
        if start is None:
            start = _find_free_columns(blocks, columns)
            if start is None:
                versions = [block.version for block in blocks]
                reason = f"{columns} free columns of tensor memory (tcgen05.dealloc)"
                return group.park(lambda: reason, lambda: [block.version for block in blocks] != versions)
            for block in blocks:
                block.allocate(start, columns, form.line)
                if ticket is not None and block is not memory:
                    block.granted[ticket] = start
        memory.tickets.pop((int(warp[0]), group.pc), None)
        address = to_shared_address(require_uniform(pointer(cta, slice_warp(warp)), "the address"))
        where = np.array([address])
        cta.shared.store(where, 4, np.array([start], np.uint32), cta.actors[warp[:1]])
        cta.shared.mark_arrived(where, 4)  # the machine stores the address: no thread could fence it
        if cta.order is not None:
            # All lanes may read the address at once.
            cta.order.sync_warps(cta.actors[warp])
        group.pc += 1
        return True


@register_decoder("tcgen05.dealloc")
def _decode_dealloc(form: Form) -> None:
    """Decode `tcgen05.dealloc` into a step by which a warp, or one of each block of a pair, frees its columns."""
    form.step.gather = _WARP
    group_size = read_cta_group(form)
    address_slot, columns_slot = form.read(form.operands[0], "u32"), form.read(form.operands[1], "u32")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Free one warp's columns, whose operations must be over, or park it and return False until its peer frees them
        too."""
        warp = _split_off_warp(cta, group, threads, "tcgen05.dealloc")
        find_group_blocks(cta, group_size)
        columns = require_uniform(cta.views[columns_slot][warp], "the number of columns")
        address = require_uniform(cta.views[address_slot][warp], "the address")
        memory = tmem.get_tensor_memory(cta)
        allocation = memory.find_allocation(address, columns)
        if group_size == 2 and _wait_for_peer(cta, group, warp, "tcgen05.dealloc", columns) is None:
            return False
        memory.tickets.pop((int(warp[0]), group.pc), None)
        actors = cta.actors[warp]
        clock = None if cta.order is None else cta.order.clock_of_any(actors)
        ending = tmem.TensorOperation("tcgen05.dealloc", form.line, cta.launch.events.pc, actors, clock)
        cells = tmem.make_rectangle(np.arange(tmem.LANES), address, columns)
        memory.require_finished(ending, cells, "tcgen05.dealloc")
        if group_size == 2:
            tmem.get_tensor_memory(cta.cluster.ctas[cta.rank ^ 1]).require_peer_knows(ending, cells)
        memory.free(allocation)
        group.pc += 1
        return True


@register_decoder("tcgen05.relinquish_alloc_permit")
def _decode_relinquish(form: Form) -> None:
    """Decode `tcgen05.relinquish_alloc_permit` into a step after which the block may allocate no more tensor memory."""
    form.step.gather = _WARP
    read_cta_group(form)

    @form.set_run
    def run_relinquish(cta: Cta, threads: Threads) -> None:
        """Note that the block gives up allocating tensor memory; a divergent warp is a fault."""
        split_into_warps(cta, threads, "tcgen05.relinquish_alloc_permit")
        tmem.get_tensor_memory(cta).is_relinquished = True
