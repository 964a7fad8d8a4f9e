"""PTX that a kernel's author writes, on registers of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilec.codegen.builder import Builder, RegisterClass, get_register_class
from tilec.ir import tile
from tilec.ptx import snippet
from tilec.ptx.module import Reg


def emit_ptx(expr: tile.Ptx, args: Sequence[Reg], builder: Builder) -> Reg:
    """Emit the instructions, and return the register of the result."""
    written = snippet.parse_snippet(expr.text, len(args))
    result = builder.new_register(get_register_class(expr.dtype))
    names = {snippet.operand_name(number): register for number, register in enumerate((result, *args))}
    names |= {name: builder.new_register(cast(RegisterClass, cls)) for name, cls in written.registers}
    for instruction in written.renamed(names):
        builder.emit(instruction.opcode, *instruction.operands, guard=instruction.guard)
    return result
