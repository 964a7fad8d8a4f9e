"""The machine instructions that an assembler makes of a PTX instruction, where these are several or other ones.

Counted in what ptxas of CUDA 13.0 makes for sm_90a. Where numbers that are rare take a call (subnormal ones, division
by zero), the way without it counts.
"""

from __future__ import annotations

import re

from tilec.ptx.module import Imm, Instruction
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class MachineOperations:
    """Counts of the machine instructions that issue, and of those that use the unit of special functions."""

    issued: int
    special: int


_OPERATIONS: tuple[tuple[str, MachineOperations], ...] = (
    (r"div\.rn(\.ftz)?\.f32", MachineOperations(8, 2)),  # MUFU.RCP and FCHK
    (r"div\.full(\.ftz)?\.f32", MachineOperations(8, 1)),
    (r"div\.approx\.f32", MachineOperations(5, 1)),
    (r"rcp\.rn(\.ftz)?\.f32", MachineOperations(8, 1)),
    (r"sqrt\.rn(\.ftz)?\.f32", MachineOperations(8, 1)),
    (r"rcp\.approx\.f32", MachineOperations(8, 1)),
    (r"(sqrt|rsqrt|ex2|lg2)\.approx\.f32", MachineOperations(4, 1)),
    (r"(sin|cos)\.approx(\.ftz)?\.f32", MachineOperations(2, 1)),
    (r"(ex2|tanh)\.approx(\.ftz)?\.b?f16x2", MachineOperations(3, 2)),
    (r"(div|rem)\.s32", MachineOperations(22, 3)),  # I2F, MUFU.RCP and F2I
    (r"(div|rem)\.u32", MachineOperations(18, 3)),
    (r"(popc|clz|bfind|brev)\.[bsu]32", MachineOperations(1, 1)),
)
"""Rows by a pattern of the whole opcode."""
_BY_CONSTANT = MachineOperations(4, 0)
"""A division of whole numbers by a constant: a wide product, shifts, and for a remainder another product."""
_INTEGER_ROUNDING = ("rni", "rmi", "rpi", "rzi")
_FAST_SOURCES = ("s32", "u32", "s16", "u16")
"""Types whose conversion to f32 does not take the unit of special functions."""


def find_machine_operations(instruction: Instruction) -> MachineOperations | None:
    """Return the machine instructions of a PTX instruction; None where it is one, on the unit of its opcode."""
    opcode = instruction.opcode
    if opcode.startswith("cvt."):
        return MachineOperations(1, 1) if _is_special_conversion(opcode.split(".")) else None
    if re.fullmatch(r"(div|rem)\.[su]32", opcode) and isinstance(instruction.operands[-1], Imm):
        return _BY_CONSTANT
    return next((row for pattern, row in _OPERATIONS if re.fullmatch(pattern, opcode)), None)


def _is_special_conversion(words: list[str]) -> bool:
    """Return whether a conversion uses the unit of special functions: F2I, FRND, I2F of small integers."""
    to, source = words[-2:]
    if "f64" in (to, source):
        return True
    if _is_float(to) and _is_float(source):
        return to == source and any(word in _INTEGER_ROUNDING for word in words)
    if _is_float(to) != _is_float(source):
        return not (to == "f32" and source in _FAST_SOURCES)
    return False


def _is_float(name: str) -> bool:
    """Return whether a type is one of floating-point numbers, packed or not."""
    return name.startswith(("f", "bf", "tf", "e"))
