"""Row reductions of fragments: a thread's registers, then lanes by butterfly shuffles, then warps through shared
memory.
"""

from __future__ import annotations

import itertools

from tilec.codegen.builder import f32
from tilec.codegen.state import State
from tilec.diag import InternalError
from tilec.ir.affine import add, interval, scale
from tilec.ir.layout import THREAD, Fragment
from tilec.ir.tile import Binary, Expr, integer
from tilec.ir.types import BOOL, FLOAT32, INT32
from tilec.ir.warp import Reduce
from tilec.ptx.module import Address, Imm, Operand, Reg

FULL_WARP = Imm(-1)
IDENTITY = {"sum": 0.0, "max": float("-inf"), "min": float("inf"), "absmax": 0.0}


def emit_reduce(op: Reduce, state: State) -> None:
    state.builder.at(op.span)
    source, destination = state.layouts[op.source.name], state.layouts[op.destination.name]
    kept = _kept_registers(source, destination, op.dim)
    with state.scalars.scope():
        partial = {d: _own(op, state, source, registers) for d, registers in kept.items()}
        for d in partial:
            partial[d] = _across_lanes(op, state, source, partial[d])
        if op.scratch is not None:
            partial = _across_warps(op, state, source, partial)
        for d, value in partial.items():
            _write(op, state, d, value)


def _kept_registers(source: Fragment, destination: Fragment, dim: int) -> dict[int, list[int]]:
    """For each register of the result, those of the source that go into it."""
    by_offset = {destination.register_offset(r): r for r in reversed(range(destination.register_count))}
    kept: dict[int, list[int]] = {}
    for r in range(source.register_count):
        offset = list(source.register_offset(r))
        if len(destination.shape) == len(source.shape):
            offset[dim] = 0
        elif len(source.shape) == 1:
            offset = [0]
        else:
            del offset[dim]
        kept.setdefault(by_offset[tuple(offset)], []).append(r)
    return kept


def _combine(op: Reduce, state: State, a: Operand, b: Operand) -> Reg:
    opcode = {"sum": "add.rn.f32", "max": "max.f32", "min": "min.f32", "absmax": "max.f32"}[op.kind]
    return state.builder.into("f32", opcode, a, b)


def _own(op: Reduce, state: State, layout: Fragment, registers: list[int]) -> Reg:
    """A thread's own elements, combined as a tree so that few depend on one another."""
    values = [_element(op, state, layout, r) for r in registers]
    while len(values) > 1:
        paired = [_combine(op, state, values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = paired + values[len(paired) * 2 :]
    return values[0]


def _element(op: Reduce, state: State, layout: Fragment, register: int) -> Reg:
    """One element as float32; the identity where the register holds none."""
    dtype = op.source.dtype
    if not dtype.is_float or dtype.bits > 32:
        raise InternalError(f"no reduction of {dtype}")
    value: Operand = state.fragments[op.source.name][register]
    if dtype.bits == 16:
        value = state.scalars.widen(value, dtype)
    if op.kind == "absmax":
        value = state.builder.into("f32", "abs.f32", value)
    if layout.overhangs(op.dim):
        coordinate = add(layout.thread_coordinates()[op.dim], integer(layout.register_offset(register)[op.dim]))
        extent = layout.shape[op.dim]
        if interval(coordinate, state.scalars.ranges)[1] >= extent:
            inside = state.scalars.register(Binary("lt", coordinate, integer(extent), BOOL))
            value = state.builder.into("f32", "selp.f32", value, f32(IDENTITY[op.kind]), inside)
    assert isinstance(value, Reg)
    return value


def _across_lanes(op: Reduce, state: State, layout: Fragment, value: Reg) -> Reg:
    below = 1
    for axis in layout.threads:
        step = below
        while axis.dim == op.dim and step < min(below * axis.size, 32):
            bits = state.builder.into("b32", "mov.b32", value)
            other = state.builder.into("b32", "shfl.sync.bfly.b32", bits, Imm(step), Imm(31), FULL_WARP)
            value = _combine(op, state, value, state.builder.into("f32", "mov.b32", other))
            step *= 2
        below *= axis.size
    return value


def _across_warps(op: Reduce, state: State, layout: Fragment, partial: dict[int, Reg]) -> dict[int, Reg]:
    """Every warp leaves what it has; every thread picks up what the warps of its row left."""
    assert op.scratch is not None
    threads = state.role.threads
    place = {d: i for i, d in enumerate(partial)}
    for d, value in partial.items():
        state.builder.emit("st.shared.f32", _scratch(op, state, THREAD, place[d] * threads), value)
    state.builder.emit("bar.sync", Imm(state.barrier_id), Imm(threads))
    others = list(_row_mates(layout, op.dim))
    result = {}
    for d, i in place.items():
        total: Reg | None = None
        for mate in others:  # the same order in every warp, so that all get the same sum
            value = state.builder.into("f32", "ld.shared.f32", _scratch(op, state, mate, i * threads))
            total = value if total is None else _combine(op, state, total, value)
        assert total is not None
        result[d] = total
    return result


def _scratch(op: Reduce, state: State, thread: Expr, first: int) -> Address:
    assert op.scratch is not None
    return state.addresses.shared_element(op.scratch, (scale(add(thread, integer(first)), 4),), ())


def _row_mates(layout: Fragment, dim: int) -> list[Expr]:
    """The threads, one per warp, that hold parts of this thread's row: its own index with the warp digits replaced."""
    digits: list[tuple[int, int, int]] = []  # (weight, size, lane part's size)
    below = 1
    for axis in layout.threads:
        if axis.dim == dim and below * axis.size > 32:
            low = max(below, 32)
            digits.append((low, below * axis.size // low, low))
        below *= axis.size
    own: Expr = THREAD
    for weight, size, _ in digits:
        digit: Expr = Binary("floordiv", THREAD, integer(weight), INT32)
        if weight * size < layout.thread_count:
            digit = Binary("floormod", digit, integer(size), INT32)
        own = Binary("sub", own, scale(digit, weight), INT32)
    choices = itertools.product(*(range(size) for _, size, _ in digits))
    return [add(own, integer(sum(c * w for c, (w, _, _) in zip(choice, digits, strict=True)))) for choice in choices]


def _write(op: Reduce, state: State, register: int, value: Reg) -> None:
    target = state.fragments[op.destination.name][register]
    dtype = op.destination.dtype
    if not op.clear:
        before: Operand = target if dtype.bits == 32 else state.scalars.widen(target, dtype)
        value = _combine(op, state, before, value)
    if dtype == FLOAT32:
        state.builder.emit("mov.f32", target, value)
    else:
        state.builder.emit("mov.b16", target, state.scalars.narrow(value, dtype))
