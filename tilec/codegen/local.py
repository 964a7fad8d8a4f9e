"""Arrays of which every thread has its own: an element is a register, found out at run time where the index is."""

from __future__ import annotations

from tilec.codegen.builder import register_class
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add, scale
from tilec.ir.types import BOOL
from tilec.ptx.module import Guard, Imm, Operand, Reg


def clear_local(buffer: tile.Buffer, state: State) -> None:
    """Zeros, so that a thread that has set nothing yet has something to compute with, if not to use."""
    nothing: tile.Const = tile.Const(False if buffer.dtype == BOOL else 0, buffer.dtype)
    for register in state.fragments[buffer.name]:
        _move(buffer, register, state.scalars.value(nothing), None, state)


def read_local(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], state: State) -> Operand:
    """The element; some element where the index leaves the array."""
    registers, position = state.fragments[buffer.name], _position(buffer, indices)
    fixed = _known(position, state)
    if fixed is not None:
        return registers[min(max(fixed, 0), len(registers) - 1)]
    at = state.scalars.register(position)
    found = state.builder.into(register_class(buffer.dtype), f"mov.{register_class(buffer.dtype)}", registers[0])
    for number, register in enumerate(registers[1:], 1):
        _move(buffer, found, register, state.builder.into("pred", "setp.eq.s32", at, Imm(number)), state)
    return found


def write_local(
    buffer: tile.Buffer, indices: tuple[tile.Expr, ...], value: Operand, guard: Reg | None, state: State
) -> None:
    """Set the element; nothing where the index leaves the array."""
    registers, position = state.fragments[buffer.name], _position(buffer, indices)
    fixed = _known(position, state)
    if fixed is not None:
        if 0 <= fixed < len(registers):
            _move(buffer, registers[fixed], value, guard, state)
        return
    at = state.scalars.register(position)
    for number, register in enumerate(registers):
        here = state.builder.into("pred", "setp.eq.s32", at, Imm(number))
        if guard is not None:
            here = state.builder.into("pred", "and.pred", here, guard)
        _move(buffer, register, value, here, state)


def _position(buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Which register it is: the index in row-major order, as `ir.layout.local` has them."""
    total: tile.Expr = tile.integer(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        total = add(scale(total, extent), index)
    return total


def _known(position: tile.Expr, state: State) -> int | None:
    low, high = state.scalars.interval(position)
    return int(low) if low == high else None


def _move(buffer: tile.Buffer, target: Reg, value: Operand, guard: Reg | None, state: State) -> None:
    cls = register_class(buffer.dtype)
    if cls == "pred":
        value = state.scalars.in_register(value, buffer.dtype)
    state.builder.emit(f"mov.{cls}", target, value, guard=None if guard is None else Guard(guard))
