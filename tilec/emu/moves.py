"""Moves, conversions between types, and addresses between spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import TIMERS, Form, semantics
from tilec.emu.memory import GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_RANK_SHIFT, SHARED_WINDOW, WINDOW_SHIFT
from tilec.emu.numbers import (
    TYPES,
    Array,
    Type,
    bf16_to_f32,
    clamp_integer,
    f32_to_fp8,
    flush,
    fp8_to_f32,
    narrow,
    narrow_bf16,
    to_integer,
)
from tilec.emu.semantics import apply, elementwise
from tilec.ptx.module import Imm, Reg, Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

_BITS = {"16": "b16", "32": "b32", "64": "b64"}


@semantics("mov")
def _mov(form: Form) -> None:
    view = form.type()
    destination, source = form.operands
    if isinstance(source, Vector):
        _pack(form, view, source)
        return
    if isinstance(destination, Vector):
        _unpack(form, view, destination)
        return
    if isinstance(source, Reg) and source.name in TIMERS:
        _read_timer(form, view)
        return
    name = view.name if view.kind == "pred" else f"b{view.bits}"
    # A float's immediate must be read as that float, whatever the register looks like.
    slot = form.read(source, name if isinstance(source, Reg) else view.name)
    target = form.write(destination, name if isinstance(source, Reg) else view.name)

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        views[target][threads] = views[slot][threads]

    form.step.run = run


def _read_timer(form: Form, view: Type) -> None:
    target = form.write(form.operands[0], f"u{view.bits}")

    def run(cta: Cta, threads: Threads) -> None:
        # Time must advance: library wait loops read it.
        cta.launch.clock += 1000
        cta.views[target][threads] = cta.launch.clock & ((1 << min(view.bits, 63)) - 1)

    form.step.run = run


def _part(view: Type, count: int, form: Form) -> Type:
    if view.bits % count or view.bits // count < 8:
        raise form.unsupported(f"{count} parts")
    return TYPES[f"b{view.bits // count}"]


def _pack(form: Form, view: Type, source: Vector) -> None:
    part = _part(view, len(source.items), form)
    target = form.write(form.operands[0], f"b{view.bits}")
    slots = [form.read(item, part.name) for item in source.items]
    whole = np.dtype(f"u{view.bits // 8}")

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        result = views[slots[0]][threads].astype(whole)
        for position, slot in enumerate(slots[1:], start=1):
            result |= views[slot][threads].astype(whole) << whole.type(position * part.bits)
        views[target][threads] = result

    form.step.run = run


def _unpack(form: Form, view: Type, destination: Vector) -> None:
    part = _part(view, len(destination.items), form)
    source = form.read(form.operands[1], f"b{view.bits}")
    targets = [form.write(item, part.name) for item in destination.items]
    whole = np.dtype(f"u{view.bits // 8}")

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        value = views[source][threads].copy()
        for position, target in enumerate(targets):
            views[target][threads] = (value >> whole.type(position * part.bits)).astype(part.dtype)

    form.step.run = run


# -- cvt ---------------------------------------------------------------------------------------------------------------

_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
_TO_FLOAT = ("rn", "rz", "rm", "rp")


@semantics("cvt")
def _cvt(form: Form) -> None:
    if len(form.types) != 2:
        raise form.unsupported("two types are needed")
    target, source = TYPES[form.types[0]], TYPES[form.types[1]]
    if len(form.operands) == 3:
        _cvt_packed(form, target, source)
        return
    if source.name in ("e4m3x2", "e5m2x2"):
        elementwise(form, lambda a: fp8_to_f32(a, source.name[:4]).astype(np.float16), target.name, source.name)
        return
    if target.lanes > 1 or source.lanes > 1:
        raise form.unsupported("packed operands")
    elementwise(form, conversion(form, target, source), target.name, source.name)


def conversion(form: Form, target: Type, source: Type) -> Callable[[Array], Array]:
    """From the numbers of one type to those of another."""
    from_float, to_float = source.kind in ("f", "bf16"), target.kind in ("f", "bf16") or target.name == "tf32"
    if not from_float and not to_float:
        if form.has("sat"):
            return lambda a: clamp_integer(a, target.dtype)
        return lambda a: a.astype(target.dtype)
    if not from_float:
        rounding = form.first(*_TO_FLOAT, default="rn")
        if target.kind == "bf16":
            return lambda a: narrow_bf16(a.astype(np.float32), rounding)
        if rounding == "rn":
            return lambda a: a.astype(target.dtype)
        return lambda a: narrow(a.astype(np.float64), target.dtype, rounding)
    widen = _widen(form, source)
    if not to_float:
        to_int = form.first(*_TO_INTEGER, default="rzi")
        return lambda a: to_integer(widen(a), target.dtype, to_int)
    return _float_to_float(form, target, source, widen)


def _widen(form: Form, source: Type) -> Callable[[Array], Array]:
    if source.kind == "bf16":
        return bf16_to_f32
    if form.has("ftz") and source.name == "f32":
        return flush
    return lambda a: a


def _float_to_float(
    form: Form, target: Type, source: Type, widen: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    rounding = form.first(*_TO_FLOAT, default="rn")
    integral = form.first(*_TO_INTEGER)

    def convert(values: Array) -> Array:
        wide = widen(values)
        if integral:
            wide = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[integral](wide)
        if form.has("sat"):
            wide = np.where(np.isnan(wide), 0, np.clip(wide, 0, 1)).astype(wide.dtype)
        if form.has("relu"):
            wide = np.where(wide < 0, 0, wide).astype(wide.dtype)
        if target.kind == "bf16":
            return narrow_bf16(wide.astype(np.float32), rounding)
        if target.name == "tf32":
            return _to_tf32(wide, is_even=rounding == "rn" and form.has("rn"))
        if target.bits >= source.bits and source.kind == "f":
            return wide.astype(target.dtype)
        result = narrow(wide, target.dtype, rounding)
        return flush(result) if form.has("ftz") and target.name == "f32" else result

    return convert


def _to_tf32(values: Array, is_even: bool) -> Array:
    """Round an f32 to 10 bits of mantissa, ties away from zero (`.rna`) or to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1)) if is_even else np.uint32(0x1000)
    rounded = (bits + half) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, bits)


def _cvt_packed(form: Form, target: Type, source: Type) -> None:
    """`cvt.rn.f16x2.f32 d, high, low`."""
    slot = form.write(form.operands[0], f"b{target.bits}")
    high, low = form.read(form.operands[1], source.name), form.read(form.operands[2], source.name)
    rounding = form.first(*_TO_FLOAT, default="rn")
    half_bits = target.bits // 2
    word = np.dtype(f"u{target.bits // 8}")

    def one(values: Array) -> Array:
        if form.has("relu"):
            values = np.where(values < 0, np.float32(0), values)
        if target.name == "bf16x2":
            return narrow_bf16(values, rounding)
        if target.name == "f16x2":
            if form.has("satfinite"):
                values = np.clip(values, np.float32(-65504), np.float32(65504))
            return narrow(values, np.dtype(np.float16), rounding).view(np.uint16)
        return f32_to_fp8(values, target.name[:4])

    if target.lanes != 2:
        raise form.unsupported("two sources")

    def pack(a: Array, b: Array) -> Array:
        packed: Array = (one(a).astype(word) << word.type(half_bits)) | one(b).astype(word)
        return packed

    form.step.run = apply(pack, slot, [high, low])


# -- addresses ---------------------------------------------------------------------------------------------------------

_WINDOWS = {"global": 0, "const": 0, "param": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


@semantics("cvta")
def _cvta(form: Form) -> None:
    view = form.type()
    space = form.first("global", "const", "param", "shared", "shared::cta", "shared::cluster", "local")
    # Global, constant and parameter addresses are generic already.
    window = _WINDOWS[space.partition("::")[0]]
    if form.has("to"):
        elementwise(form, lambda a: a - view.dtype.type(window), view.name, view.name)
    else:
        elementwise(form, lambda a: a + view.dtype.type(window), view.name, view.name)


@semantics("isspacep")
def _isspacep(form: Form) -> None:
    space = form.modifiers[0].partition("::")[0]
    base = {"global": GLOBAL_BASE, "const": GLOBAL_BASE, "param": PARAM_WINDOW}.get(space, _WINDOWS[space])
    window = np.uint64(base >> WINDOW_SHIFT)
    elementwise(form, lambda a: (a >> np.uint64(WINDOW_SHIFT)) == window, "pred", "u64")


@semantics("mapa")
def _mapa(form: Form) -> None:
    view = form.type()
    mask = (1 << SHARED_RANK_SHIFT) - 1

    def map_address(address: Array, rank: Array) -> Array:
        word = view.dtype.type
        window = address & ~word(0xFFFFFFFF) if view.bits == 64 else word(0)
        in_cluster = (rank.astype(view.dtype) + word(1)) << word(SHARED_RANK_SHIFT)
        mapped: Array = window | (address & word(mask)) | in_cluster
        return mapped

    elementwise(form, map_address, view.name, view.name, "u32")


@semantics("createpolicy")
def _createpolicy(form: Form) -> None:
    target = form.write(form.operands[0], "b64")
    slot = form.read(Imm(0), "b64")
    form.step.run = apply(lambda a: a, target, [slot])
