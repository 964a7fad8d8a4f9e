"""Registers as arrays: those that are private to a thread, and a thread's parts of a reducer. A run-time index selects
an element by comparisons."""

from __future__ import annotations

from tilec.codegen.builder import get_register_class
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.types import BOOL
from tilec.ops.reductions.reducer import COMBINATIONS
from tilec.ptx.module import Guard, Imm, Operand, Reg


def clear_local(buffer: tile.Buffer, state: State) -> None:
    """Emit moves that set every register of a local array to zero.

    So registers are defined even in threads that have not set them yet.
    """
    nothing: tile.Const = tile.Const(False if buffer.dtype == BOOL else 0, buffer.dtype)
    for register in state.fragments[buffer.name]:
        _emit_move(buffer, register, state.scalars.get_operand(nothing), None, state)


def read_local(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], state: State) -> Operand:
    """Return a local array's element: its register, or one emitted by comparisons if the index is known at run time
    only.

    It is arbitrary if the index leaves the array.
    """
    registers, position = state.fragments[buffer.name], _compute_position(buffer, indices)
    fixed = _find_constant(position, state)
    if fixed is not None:
        return registers[min(max(fixed, 0), len(registers) - 1)]
    at = state.scalars.get_register(position)
    cls = get_register_class(buffer.dtype)
    found = state.builder.create(cls, f"mov.{cls}", registers[0])
    for number, register in enumerate(registers[1:], 1):
        _emit_move(buffer, found, register, state.builder.create("pred", "setp.eq.s32", at, Imm(number)), state)
    return found


def write_local(
    buffer: tile.Buffer, indices: tuple[tile.Expr, ...], value: Operand, guard: Reg | None, state: State
) -> None:
    """Emit the move of a value to a local array's element; nothing if the guard fails or the index leaves it."""
    registers, position = state.fragments[buffer.name], _compute_position(buffer, indices)
    fixed = _find_constant(position, state)
    if fixed is not None:
        if 0 <= fixed < len(registers):
            _emit_move(buffer, registers[fixed], value, guard, state)
        return
    at = state.scalars.get_register(position)
    for number, register in enumerate(registers):
        here = state.builder.create("pred", "setp.eq.s32", at, Imm(number))
        if guard is not None:
            here = state.builder.create("pred", "and.pred", here, guard)
        _emit_move(buffer, register, value, here, state)


def _compute_position(buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Return the expression of an element's number in row-major order, the order of `ir.layout.local`."""
    total: tile.Expr = tile.int32_const(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        total = add_exprs(scale_expr(total, extent), index)
    return total


def _find_constant(position: tile.Expr, state: State) -> int | None:
    """Return the value of an expression if it is a known constant, else None."""
    low, high = state.scalars.find_interval(position)
    return int(low) if low == high else None


def _emit_move(buffer: tile.Buffer, target: Reg, value: Operand, guard: Reg | None, state: State) -> None:
    """Emit the move of a value to a register of the array's type, where the guard holds; always if it is None."""
    cls = get_register_class(buffer.dtype)
    if cls == "pred":
        value = state.scalars.ensure_register(value, buffer.dtype)
    state.builder.emit(f"mov.{cls}", target, value, guard=None if guard is None else Guard(guard))


def add_to_part(store: tile.Store, part: Reg, value: Reg, guard: Reg | None, state: State) -> None:
    """Emit the update of register `part` by the reducer's operation and a value, where the guard holds, if given."""
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
    """Emit the update of the thread's partial result at an index; nothing if the index is outside.

    A run-time index is compared with each place.
    """
    buffer = store.buffer
    layout, registers = state.layouts[buffer.name], state.fragments[buffer.name]
    position = _compute_position(buffer, indices)
    low, high = state.scalars.find_interval(position)
    at = None if low == high else state.scalars.get_register(position)
    for number, register in enumerate(registers):
        here, mine = guard, 0
        for coordinate, extent in zip(layout.register_offset(number), buffer.shape, strict=True):
            mine = mine * extent + coordinate
        if at is None:
            if mine != low:
                continue
        else:
            here = state.builder.create("pred", "setp.eq.s32", at, Imm(mine))
            if guard is not None:
                here = state.builder.create("pred", "and.pred", here, guard)
        add_to_part(store, register, value, here, state)
