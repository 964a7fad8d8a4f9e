"""Decoders of ld and st, and loads and stores by state space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.memory import (
    CALL_PARAMS,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_SHIFT,
    WORD_TYPES,
    Memory,
)
from tilec.emu.numbers import TYPES, Array, PtxType
from tilec.ptx.module import Operand, Reg, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

POLL_COST = 500
"""The cost in steps of an access that may poll a flag: a group that repeats it should soon let others run."""
_B128 = "b128"
"""A type moved in one piece: two registers of 64 bits, declared as one."""

LoadFunction = Callable[["Cta", "Threads", Array, int], Array]
StoreFunction = Callable[["Cta", "Threads", Array, int, Array], None]


# -- one access to one space -------------------------------------------------------------------------------------------


def _load_global(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return `width` bytes of global memory for each thread as words, checked by the memory."""
    return cta.launch.memory.load(addresses, width, cta.actors[threads])


def _load_shared(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return `width` bytes of the block's shared memory for each thread as words, checked by the memory."""
    return cta.shared.load(addresses, width, cta.actors[threads])


def _load_param(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return words of `.param` space: of each thread's call parameters, judged by the first address, or else the
    kernel's."""
    if _is_call_param(addresses):
        return _load_local(cta, threads, addresses - CALL_PARAMS, width)
    return _load_kernel_params(cta, threads, addresses + PARAM_WINDOW, width)


def _is_call_param(addresses: Array) -> bool:
    """Return whether `.param` addresses, judged by the first, belong to parameters of a call, which each thread has."""
    return int(addresses[0]) >= CALL_PARAMS


def _load_kernel_params(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return `width` bytes of the kernel's parameters for each thread as words, checked by the memory."""
    return cta.launch.params.load(addresses, width)


def _load_local(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return `width` bytes of each thread's own local memory as words; fault outside of it."""
    rows, columns = _compute_local_indices(cta, threads, addresses, width)
    data = cta.local[rows, columns]
    return data.view(WORD_TYPES[min(width, 8)]).reshape(-1) if width < 16 else data.view(np.uint64)


def _store_global(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store `width` bytes to global memory for each thread, checked by the memory."""
    cta.launch.memory.store(addresses, width, values, cta.actors[threads])


def _store_shared(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store `width` bytes to the block's shared memory for each thread, checked by the memory."""
    cta.shared.store(addresses, width, values, cta.actors[threads])


def _store_local(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store `width` bytes to each thread's own local memory; fault outside of it."""
    rows, columns = _compute_local_indices(cta, threads, addresses, width)
    cta.local[rows, columns] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _compute_local_indices(cta: Cta, threads: Threads, addresses: Array, width: int) -> tuple[Array, Array]:
    """Return row and column indices, [thread, byte], of accesses to local memory; fault outside of it."""
    if ((addresses < 0) | (addresses + width > cta.local.shape[1])).any():
        raise Fault("out-of-bounds", f"{width} bytes at local address {int(addresses.max()):#x}")
    return cta.thread_ids[threads][:, None], addresses[:, None] + np.arange(width)


def _store_param(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store to a call's parameters in `.param` space; fault for the kernel's, which are read-only."""
    if not _is_call_param(addresses):
        _refuse_store(cta, threads, addresses, width, values)
    _store_local(cta, threads, addresses - CALL_PARAMS, width, values)


def _refuse_store(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Raise the fault of a store to kernel parameters."""
    raise Fault("out-of-bounds", "kernel parameters are read-only")


def _split_by_block(cta: Cta, addresses: Array) -> list[tuple[Memory, Array, Array]]:
    """Return, for each block of the cluster that addresses name: its shared memory, a mask of threads, addresses
    there."""
    ranks = addresses >> SHARED_RANK_SHIFT
    parts = []
    for rank in np.unique(ranks).tolist():
        owner, _ = cta.find_peer(rank << SHARED_RANK_SHIFT)
        chosen = ranks == rank
        parts.append((owner.shared, chosen, addresses[chosen] - (rank << SHARED_RANK_SHIFT)))
    return parts


def _make_result(addresses: Array, width: int) -> Array:
    """Return zeros for a load of `width` bytes by each thread: one word, or two of 8 bytes for 16."""
    return np.zeros((len(addresses), 2) if width == 16 else len(addresses), WORD_TYPES[min(width, 8)])


def _load_cluster(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return words for each thread from the shared memory of the block of the cluster that its address names."""
    result, actors = _make_result(addresses, width), cta.actors[threads]
    for memory, chosen, own in _split_by_block(cta, addresses):
        result[chosen] = memory.load(own, width, actors[chosen])
    return result


def _store_cluster(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store to the shared memory of the block of the cluster that each address names."""
    actors = cta.actors[threads]
    for memory, chosen, own in _split_by_block(cta, addresses):
        memory.store(own, width, values[chosen], actors[chosen])


class StateSpace(NamedTuple):
    """The functions that load from and store to a state space. Generic addresses of it begin at `base`."""

    load: LoadFunction
    store: StoreFunction | None
    base: int = 0


_GLOBAL, _SHARED = StateSpace(_load_global, _store_global), StateSpace(_load_shared, _store_shared)
_LOCAL = StateSpace(_load_local, _store_local, LOCAL_WINDOW)
_CLUSTER = StateSpace(_load_cluster, _store_cluster, SHARED_WINDOW)
_WINDOWS = {
    PARAM_WINDOW >> WINDOW_SHIFT: StateSpace(_load_kernel_params, _refuse_store),
    LOCAL_WINDOW >> WINDOW_SHIFT: _LOCAL,
    SHARED_WINDOW >> WINDOW_SHIFT: _CLUSTER,
}
"""The state space of a generic address, by its upper bits; global memory has the others."""


def _split_by_space(
    cta: Cta, threads: Threads, addresses: Array
) -> Iterator[tuple[StateSpace, Array, tuple[Cta, Array, Array]]]:
    """Yield each state space that generic addresses fall into, a mask of its threads, and block, threads and addresses
    there."""
    members = cta.thread_ids[threads]
    windows = addresses >> WINDOW_SHIFT
    for window in np.unique(windows).tolist():
        space, chosen = _WINDOWS.get(window, _GLOBAL), windows == window
        yield space, chosen, (cta, members[chosen], addresses[chosen] - space.base)


def load_generic(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Return `width` bytes for each thread, as words, from generic addresses, each in the state space of its window."""
    result = _make_result(addresses, width)
    for space, chosen, part in _split_by_space(cta, threads, addresses):
        result[chosen] = space.load(*part, width)
    return result


def _store_generic(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    """Store `width` bytes for each thread to generic addresses, each in the state space of its window."""
    for space, chosen, part in _split_by_space(cta, threads, addresses):
        assert space.store is not None
        space.store(*part, width, values[chosen])


_SPACES = {
    "global": _GLOBAL,
    "const": StateSpace(_load_global, None),
    **dict.fromkeys(("shared", "shared::cta"), _SHARED),
    "shared::cluster": _CLUSTER,
    **dict.fromkeys(("param", "param::func"), StateSpace(_load_param, _store_param)),
    "param::entry": StateSpace(_load_param, None),
    "local": _LOCAL,
    "": StateSpace(load_generic, _store_generic),
}
ACCESS_MODIFIERS = (
    "weak volatile relaxed acquire release acq_rel sc cta cluster gpu sys mmio "
    "ca cg cs lu cv wb wt nc v2 v4 v8 unified b128 " + " ".join(_SPACES)
)
"""Modifiers that accesses may have. Most make no difference: memory is one, and each step ends before the next."""


def select_load(form: Form) -> LoadFunction:
    """Return the load function of the opcode's state space, the generic one if it names none."""
    return _SPACES[form.find_modifier(*_SPACES)].load


def select_store(form: Form) -> StoreFunction:
    """Return the store function of the opcode's state space, the generic one if it names none; fault if it is
    read-only."""
    space = form.find_modifier(*_SPACES)
    store = _SPACES[space].store
    if store is None:
        raise form.unsupported(f"a store to .{space}")
    return store


# -- ld and st ---------------------------------------------------------------------------------------------------------


def _list_vector_registers(form: Form, operand: Operand) -> tuple[Operand, ...]:
    """Return the registers that an access loads or stores; fault unless they are as many as the opcode says."""
    width = {"v2": 2, "v4": 4, "v8": 8, _B128: 2}.get(form.find_modifier("v2", "v4", "v8", _B128), 1)
    elements: tuple[Operand, ...] = operand.items if isinstance(operand, Vector) else (operand,)
    if len(elements) != width:
        raise form.unsupported(f"{len(elements)} registers")
    return elements


def _get_element_type(form: Form) -> PtxType:
    """Return the type of one register of an access: the opcode's, or b64 for a half of b128."""
    return TYPES["b64"] if form.has(_B128) else form.parse_type()


def _split_access(total: int) -> list[tuple[int, int]]:
    """Return offset and size of the parts, of at most 16 bytes each, of an access of `total` bytes."""
    return [(start, min(16, total - start)) for start in range(0, total, 16)]


def _require_alignment(addresses: Array, total: int) -> None:
    """Fault if an access of more than 16 bytes is not at a multiple of its size."""
    if total > 16 and (addresses & (total - 1)).any():
        raise Fault("misaligned", f"an access of {total} bytes at an address that is not a multiple of {total}")


@register_decoder("ld", "ldu", accepts=ACCESS_MODIFIERS)
def _decode_ld(form: Form) -> None:
    """Decode `ld` and `ldu` into a step that loads a register or a vector; accesses that may poll a flag cost more."""
    view = _get_element_type(form)
    load = select_load(form)
    pointer = form.build_address(form.operands[1])
    if not form.has("param", "param::entry", "param::func", "local", "const"):
        form.step.polled_address = pointer
        if form.has("volatile", "relaxed", "acquire", "mmio"):
            form.step.cost = POLL_COST
    elements = _list_vector_registers(form, form.operands[0])
    # The number is loaded with its type's sign, so that a wider register is extended.
    name = view.name if view.kind in "us" else f"b{view.bits}"
    targets = [form.write(element, name) for element in elements]
    width = view.bits // 8
    dtype = TYPES[name].dtype

    def load_register(cta: Cta, threads: Threads) -> None:
        """Load a number from each thread's address into the register, extended by the type's sign."""
        cta.views[targets[0]][threads] = load(cta, threads, pointer(cta, threads), width).view(dtype)

    total = width * len(targets)
    if len(targets) == 1:
        form.step.run = load_register
        return
    chunks = _split_access(total)

    def load_vector(cta: Cta, threads: Threads) -> None:
        """Load a vector of registers for each thread, in parts of at most 16 bytes."""
        addresses = pointer(cta, threads)
        views = cta.views
        _require_alignment(addresses, total)
        for start, size in chunks:
            data = load(cta, threads, addresses + start, size).reshape(len(addresses), -1).view(dtype)
            for column, target in enumerate(targets[start // width : (start + size) // width]):
                views[target][threads] = data[:, column]

    form.step.run = load_vector


@register_decoder("st", accepts=ACCESS_MODIFIERS)
def _decode_st(form: Form) -> None:
    """Decode `st` into a step that stores one register, or a vector in parts, at each thread's address."""
    view = _get_element_type(form)
    store = select_store(form)
    pointer = form.build_address(form.operands[0])
    elements = _list_vector_registers(form, form.operands[1])
    name = f"b{view.bits}"
    sources = [form.read(element, name if isinstance(element, Reg) else view.name) for element in elements]
    width = view.bits // 8
    word = WORD_TYPES[width]

    def store_register(cta: Cta, threads: Threads) -> None:
        """Store each thread's register at its address."""
        value = _view_as_word(cta.views[sources[0]][threads], word)
        store(cta, threads, pointer(cta, threads), width, value)

    total = width * len(sources)
    if len(sources) == 1:
        form.step.run = store_register
        return
    chunks = _split_access(total)

    def store_vector(cta: Cta, threads: Threads) -> None:
        """Store a vector of registers for each thread, in parts of at most 16 bytes."""
        addresses = pointer(cta, threads)
        views = cta.views
        _require_alignment(addresses, total)
        for start, size in chunks:
            part = sources[start // width : (start + size) // width]
            data = np.empty((len(addresses), len(part)), word)
            for column, source in enumerate(part):
                data[:, column] = _view_as_word(views[source][threads], word)
            packed = data.view(WORD_TYPES[min(size, 8)])
            store(cta, threads, addresses + start, size, packed if size == 16 else packed.reshape(-1))

    form.step.run = store_vector


def _view_as_word(values: Array, word: np.dtype[Any]) -> Array:
    """Return values as unsigned numbers of the same bits, in type `word`."""
    return values if values.dtype == word else np.ascontiguousarray(values).view(word)
