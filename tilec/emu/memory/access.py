"""Decoders of ld and st, and loads and stores by state space."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    Memory,
)
from tilec.emu.numbers import TYPES, Array, PtxType
from tilec.ptx.module import Operand, Reg, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

WORD_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
_SPACES = (
    "global",
    "const",
    "shared",
    "shared::cta",
    "shared::cluster",
    "param",
    "param::entry",
    "param::func",
    "local",
)
_KNOWN_MODIFIERS = {
    *_SPACES,
    *("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu", "sys", "mmio"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "v2", "v4", "v8", "unified"),
}
_CACHE_HINTS = ("L1::", "L2::", "level::")
POLL_COST = 500
"""The cost in steps of an access that may poll a flag: a group that repeats it should soon let others run."""
_B128 = "b128"
"""A type moved in one piece: two registers of 64 bits, declared as one."""

LoadFunction = Callable[["Cta", "Threads", Array, int], Array]
StoreFunction = Callable[["Cta", "Threads", Array, int, Array], None]


def check_modifiers(form: Form, *more: str) -> None:
    for modifier in form.modifiers:
        if (
            modifier not in _KNOWN_MODIFIERS
            and modifier != _B128
            and modifier not in TYPES
            and modifier not in more
            and not modifier.startswith(_CACHE_HINTS)
        ):
            raise form.unsupported(f".{modifier}")
    form.understood.update(form.modifiers)


# -- one access to one space -------------------------------------------------------------------------------------------


def _load_global(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    return cta.launch.memory.load(addresses, width, cta.actors[threads])


def _load_shared(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    return cta.shared.load(addresses, width, cta.actors[threads])


def _load_param(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    if _is_call_param(addresses):
        return _load_local(cta, threads, addresses - CALL_PARAMS, width)
    return cta.launch.params.load(addresses + PARAM_WINDOW, width)


def _is_call_param(addresses: Array) -> bool:
    """Return whether `.param` addresses belong to a call, whose parameters every thread has its own of."""
    return int(addresses[0]) >= CALL_PARAMS


def _load_kernel_params(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    return cta.launch.params.load(addresses, width)


def _load_local(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    rows, columns = _local_indices(cta, threads, addresses, width)
    data = cta.local[rows, columns]
    return data.view(WORD_TYPES[min(width, 8)]).reshape(-1) if width < 16 else data.view(np.uint64)


def _store_global(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    cta.launch.memory.store(addresses, width, values, cta.actors[threads])


def _store_shared(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    cta.shared.store(addresses, width, values, cta.actors[threads])


def _store_local(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    rows, columns = _local_indices(cta, threads, addresses, width)
    cta.local[rows, columns] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _local_indices(cta: Cta, threads: Threads, addresses: Array, width: int) -> tuple[Array, Array]:
    if ((addresses < 0) | (addresses + width > cta.local.shape[1])).any():
        raise Fault("out-of-bounds", f"{width} bytes at local address {int(addresses.max()):#x}")
    return cta.thread_ids[threads][:, None], addresses[:, None] + np.arange(width)


def _store_param(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    if not _is_call_param(addresses):
        raise Fault("out-of-bounds", "kernel parameters are read-only")
    _store_local(cta, threads, addresses - CALL_PARAMS, width, values)


def _store_kernel_params(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    raise Fault("out-of-bounds", "kernel parameters are read-only")


def _split_by_block(cta: Cta, addresses: Array) -> list[tuple[Memory, Array, Array]]:
    """Split addresses by the block of the cluster: its shared memory, a mask of the threads, addresses there."""
    ranks = addresses >> SHARED_RANK_SHIFT
    parts = []
    for rank in np.unique(ranks).tolist():
        owner, _ = cta.find_peer(rank << SHARED_RANK_SHIFT)
        chosen = ranks == rank
        parts.append((owner.shared, chosen, addresses[chosen] - (rank << SHARED_RANK_SHIFT)))
    return parts


def _load_cluster(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    result = np.zeros((len(addresses), 2) if width == 16 else len(addresses), WORD_TYPES[min(width, 8)])
    actors = cta.actors[threads]
    for memory, chosen, own in _split_by_block(cta, addresses):
        result[chosen] = memory.load(own, width, actors[chosen])
    return result


def _store_cluster(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    actors = cta.actors[threads]
    for memory, chosen, own in _split_by_block(cta, addresses):
        memory.store(own, width, values[chosen], actors[chosen])


_WINDOW_LOADS: dict[int, tuple[int, LoadFunction]] = {
    PARAM_WINDOW >> WINDOW_SHIFT: (0, _load_kernel_params),
    LOCAL_WINDOW >> WINDOW_SHIFT: (LOCAL_WINDOW, _load_local),
    SHARED_WINDOW >> WINDOW_SHIFT: (SHARED_WINDOW, _load_cluster),
}
_WINDOW_STORES: dict[int, tuple[int, StoreFunction]] = {
    PARAM_WINDOW >> WINDOW_SHIFT: (0, _store_kernel_params),
    LOCAL_WINDOW >> WINDOW_SHIFT: (LOCAL_WINDOW, _store_local),
    SHARED_WINDOW >> WINDOW_SHIFT: (SHARED_WINDOW, _store_cluster),
}


def load_generic(cta: Cta, threads: Threads, addresses: Array, width: int) -> Array:
    """Load from generic addresses."""
    result = np.zeros((len(addresses), 2) if width == 16 else len(addresses), WORD_TYPES[min(width, 8)])
    members = cta.thread_ids[threads]
    windows = addresses >> WINDOW_SHIFT
    for window in np.unique(windows).tolist():
        base, load = _WINDOW_LOADS.get(window, (0, _load_global))
        chosen = windows == window
        result[chosen] = load(cta, members[chosen], addresses[chosen] - base, width)
    return result


def _store_generic(cta: Cta, threads: Threads, addresses: Array, width: int, values: Array) -> None:
    members = cta.thread_ids[threads]
    windows = addresses >> WINDOW_SHIFT
    for window in np.unique(windows).tolist():
        base, store = _WINDOW_STORES.get(window, (0, _store_global))
        chosen = windows == window
        store(cta, members[chosen], addresses[chosen] - base, width, values[chosen])


_LOADS: dict[str, LoadFunction] = {
    "": load_generic,
    "global": _load_global,
    "const": _load_global,
    "shared": _load_shared,
    "shared::cta": _load_shared,
    "shared::cluster": _load_cluster,
    "param": _load_param,
    "param::entry": _load_param,
    "param::func": _load_param,
    "local": _load_local,
}
_STORES: dict[str, StoreFunction] = {
    "": _store_generic,
    "global": _store_global,
    "shared": _store_shared,
    "shared::cta": _store_shared,
    "shared::cluster": _store_cluster,
    "param": _store_param,
    "param::func": _store_param,
    "local": _store_local,
}


def select_load(form: Form) -> LoadFunction:
    """Return the load function of the opcode's state space."""
    return _LOADS[form.find_modifier(*_SPACES)]


def select_store(form: Form) -> StoreFunction:
    """Return the store function of the opcode's state space."""
    space = form.find_modifier(*_SPACES)
    if space not in _STORES:
        raise form.unsupported(f"a store to .{space}")
    return _STORES[space]


# -- ld and st ---------------------------------------------------------------------------------------------------------


def _vector_elements(form: Form, operand: Operand) -> tuple[Operand, ...]:
    width = {"v2": 2, "v4": 4, "v8": 8, _B128: 2}.get(form.find_modifier("v2", "v4", "v8", _B128), 1)
    elements: tuple[Operand, ...] = operand.items if isinstance(operand, Vector) else (operand,)
    if len(elements) != width:
        raise form.unsupported(f"{len(elements)} registers")
    return elements


def _element_type(form: Form) -> PtxType:
    return TYPES["b64"] if form.has(_B128) else form.parse_type()


@register_decoder("ld", "ldu")
def _decode_ld(form: Form) -> None:
    check_modifiers(form)
    view = _element_type(form)
    load = select_load(form)
    pointer = form.build_address(form.operands[1])
    if not form.has("param", "param::entry", "param::func", "local", "const"):
        form.step.polled_address = pointer
        if form.has("volatile", "relaxed", "acquire", "mmio"):
            form.step.cost = POLL_COST
    elements = _vector_elements(form, form.operands[0])
    # The number is loaded with its type's sign, so that a wider register is extended.
    name = view.name if view.kind in "us" else f"b{view.bits}"
    targets = [form.write(element, name) for element in elements]
    width = view.bits // 8
    dtype = TYPES[name].dtype

    def load_register(cta: Cta, threads: Threads) -> None:
        cta.views[targets[0]][threads] = load(cta, threads, pointer(cta, threads), width).view(dtype)

    total = width * len(targets)
    if len(targets) == 1:
        form.step.run = load_register
        return
    chunks = [(start, min(16, total - start)) for start in range(0, total, 16)]

    def load_vector(cta: Cta, threads: Threads) -> None:
        addresses = pointer(cta, threads)
        views = cta.views
        if total > 16 and (addresses & (total - 1)).any():
            raise Fault("misaligned", f"an access of {total} bytes at an address that is not a multiple of {total}")
        for start, size in chunks:
            data = load(cta, threads, addresses + start, size).reshape(len(addresses), -1).view(dtype)
            for column, target in enumerate(targets[start // width : (start + size) // width]):
                views[target][threads] = data[:, column]

    form.step.run = load_vector


@register_decoder("st")
def _decode_st(form: Form) -> None:
    check_modifiers(form)
    view = _element_type(form)
    store = select_store(form)
    pointer = form.build_address(form.operands[0])
    elements = _vector_elements(form, form.operands[1])
    name = f"b{view.bits}"
    sources = [form.read(element, name if isinstance(element, Reg) else view.name) for element in elements]
    width = view.bits // 8
    word = WORD_TYPES[width]

    def store_register(cta: Cta, threads: Threads) -> None:
        value = cta.views[sources[0]][threads]
        store(cta, threads, pointer(cta, threads), width, value if value.dtype == word else _view_as_word(value, word))

    total = width * len(sources)
    if len(sources) == 1:
        form.step.run = store_register
        return
    chunks = [(start, min(16, total - start)) for start in range(0, total, 16)]

    def store_vector(cta: Cta, threads: Threads) -> None:
        addresses = pointer(cta, threads)
        views = cta.views
        if total > 16 and (addresses & (total - 1)).any():
            raise Fault("misaligned", f"an access of {total} bytes at an address that is not a multiple of {total}")
        for start, size in chunks:
            part = sources[start // width : (start + size) // width]
            data = np.empty((len(addresses), len(part)), word)
            for column, source in enumerate(part):
                data[:, column] = _view_as_word(views[source][threads], word)
            packed = data.view(WORD_TYPES[min(size, 8)])
            store(cta, threads, addresses + start, size, packed if size == 16 else packed.reshape(-1))

    form.step.run = store_vector


def _view_as_word(values: Array, word: np.dtype[Any]) -> Array:
    return values if values.dtype == word else np.ascontiguousarray(values).view(word)
