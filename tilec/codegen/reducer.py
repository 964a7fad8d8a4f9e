"""Additions to a thread's parts of a reducer, which are registers."""

from __future__ import annotations

from tilec.codegen.builder import get_register_class
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ops.reducer import COMBINATIONS
from tilec.ptx.module import Guard, Imm, Reg


def add_to_part(store: tile.Store, part: Reg, value: Reg, guard: Reg | None, state: State) -> None:
    """Combine the value with the register's value, if the guard holds."""
    dtype = store.buffer.dtype
    assert store.atomic is not None
    held, added = tile.Var("%part", dtype), tile.Var("%added", dtype)
    with state.scalars.open_scope():
        state.scalars.scopes[-1][held] = part
        state.scalars.scopes[-1][added] = value
        total = state.scalars.get_register(tile.Binary(COMBINATIONS[store.atomic], held, added, dtype))
    state.builder.emit(f"mov.{get_register_class(dtype)}", part, total, guard=None if guard is None else Guard(guard))


def add_to_indexed_part(
    store: tile.Store, indices: tuple[tile.Expr, ...], value: Reg, guard: Reg | None, state: State
) -> None:
    """Combine the value with the part at a run-time index, in a thread that has a part of every element."""
    buffer = store.buffer
    layout, registers = state.layouts[buffer.name], state.fragments[buffer.name]
    position = _compute_row_major_index(indices, buffer.shape)
    low, high = state.scalars.find_interval(position)
    at = None if low == high else state.scalars.get_register(position)
    for number, register in enumerate(registers):
        here = guard
        place = layout.register_offset(number)
        mine = sum(p * stride for p, stride in zip(place, _compute_strides(buffer.shape), strict=True))
        if at is None:
            if mine != low:
                continue
        else:
            here = state.builder.create("pred", "setp.eq.s32", at, Imm(mine))
            if guard is not None:
                here = state.builder.create("pred", "and.pred", here, guard)
        add_to_part(store, register, value, here, state)


def _compute_strides(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


def _compute_row_major_index(indices: tuple[tile.Expr, ...], shape: tuple[int, ...]) -> tile.Expr:
    total: tile.Expr = tile.int32_const(0)
    for index, extent in zip(indices, shape, strict=True):
        total = add_exprs(scale_expr(total, extent), index)
    return total
