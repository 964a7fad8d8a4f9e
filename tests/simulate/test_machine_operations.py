"""Machine instructions of one PTX instruction: as many as the assembler makes."""

from __future__ import annotations

from functools import cache

import pytest

from tilec.emu import launcher  # noqa: F401 it registers the decoders
from tilec.emu.machine.decode import Program
from tilec.ptx.assemble import assemble_module
from tilec.ptx.module import Imm, Instruction, Reg
from tilec.ptx.parse import parse_module
from tilec.sass.cubin import read_functions
from tilec.simulate.costs import InstructionCosts
from tilec.simulate.instructions import build_instructions
from tilec.simulate.machine_operations import MachineOperations, find_machine_operations
from tilec.target.table import load_target

SPECIAL = ("MUFU", "F2I", "I2F", "FRND", "FCHK", "POPC", "0x100", "0x101")  # the last two are FLO and BREV
TYPES = {"%f": "f32", "%r": "b32", "%h": "b16"}
OPCODES = {
    "add.f32": ("%f", "%f", "%f"), "div.rn.f32": ("%f", "%f", "%f"), "div.full.f32": ("%f", "%f", "%f"),
    "rcp.rn.f32": ("%f", "%f"), "sqrt.rn.f32": ("%f", "%f"), "rcp.approx.f32": ("%f", "%f"),
    "rcp.approx.ftz.f32": ("%f", "%f"), "rsqrt.approx.f32": ("%f", "%f"), "ex2.approx.f32": ("%f", "%f"),
    "ex2.approx.ftz.f32": ("%f", "%f"), "lg2.approx.f32": ("%f", "%f"), "sin.approx.f32": ("%f", "%f"),
    "ex2.approx.f16x2": ("%r", "%r"), "tanh.approx.bf16x2": ("%r", "%r"), "div.s32": ("%r", "%r", "%r"),
    "rem.s32": ("%r", "%r", "%r"), "div.u32": ("%r", "%r", "%r"), "rem.u32": ("%r", "%r", "%r"),
    "popc.b32": ("%r", "%r"), "clz.b32": ("%r", "%r"), "brev.b32": ("%r", "%r"), "cvt.rni.f32.f32": ("%f", "%f"),
    "cvt.rzi.s32.f32": ("%r", "%f"), "cvt.rni.s8.f32": ("%r", "%f"), "cvt.rn.f32.s32": ("%f", "%r"),
    "cvt.rn.f32.u16": ("%f", "%h"), "cvt.rn.f32.s8": ("%f", "%r"), "cvt.rn.f16.f32": ("%h", "%f"),
    "cvt.f32.f16": ("%f", "%h"), "cvt.rn.bf16x2.f32": ("%r", "%f", "%f"),
    "cvt.rn.satfinite.e4m3x2.f32": ("%h", "%f", "%f"), "cvt.rn.f16x2.e4m3x2": ("%r", "%h"),
}  # fmt: skip
AROUND = ("LDC", "ULDC", "LDG", "STG", "S2R", "R2UR", "NOP", "EXIT", "BRA", "MOV", "IMAD.MOV", "CALL")


def write_entry(number: int, opcode: str, kinds: tuple[str, ...]) -> str:
    """A kernel that loads the operands of one instruction and stores its result."""
    to, *sources = kinds
    loads = [f"ld.global.{TYPES[kind]} {kind}{at}, [%rd1+{8 * at}];" for at, kind in enumerate(sources)]
    read = ", ".join(f"{kind}{at}" for at, kind in enumerate(sources))
    return "\n".join(
        [
            f".visible .entry k{number}(.param .u64 A) {{",
            ".reg .b64 %rd<2>; .reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b16 %h<9>;",
            "ld.param.u64 %rd1, [A];", *loads, f"{opcode} {to}8, {read};",
            f"st.global.{TYPES[to]} [%rd1+64], {to}8;", "ret;", "}",
        ]
    )  # fmt: skip


@cache
def assemble() -> dict[str, list[str]]:
    """The names of the machine instructions of each opcode, to the end of the way without a call."""
    entries = [write_entry(number, *one) for number, one in enumerate(OPCODES.items())]
    cubin = assemble_module("\n".join((".version 8.4", ".target sm_90a", ".address_size 64", *entries)), "sm_90a").cubin
    by_name = {function.name: [one.name for one in function.instructions] for function in read_functions(cubin)}
    whole = (by_name[f"k{number}"] for number in range(len(OPCODES)))
    return {opcode: names[: names.index("EXIT")] for opcode, names in zip(OPCODES, whole, strict=True)}


@pytest.mark.parametrize("opcode", OPCODES)
def test_instructions_are_as_many_as_the_assembler_makes(opcode: str) -> None:
    to, *sources = (Reg(f"{kind}1") for kind in OPCODES[opcode])
    given = find_machine_operations(Instruction(opcode, (to, *sources)))
    counted = given or MachineOperations(1, int(opcode.startswith(("rcp", "ex2", "tanh"))))
    made = assemble()[opcode]
    assert sum(name in SPECIAL for name in made) == counted.special
    assert sum(name not in AROUND for name in made) == pytest.approx(counted.issued, rel=0.25, abs=1)


def test_a_division_by_a_constant_uses_no_special_function() -> None:
    given = find_machine_operations(Instruction("rem.u32", (Reg("%r1"), Reg("%r2"), Imm(28))))
    assert given is not None and given.special == 0


def test_what_is_computed_twice_costs_once() -> None:
    """In straight code, as long as nothing that it reads or writes changes; behind a label all is new."""
    text = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k() {
.reg .b32 %r<9>;
.reg .pred %p<2>;
mov.u32 %r1, %tid.x;
add.s32 %r2, %r1, 5;
add.s32 %r3, %r1, 5;
mul.lo.s32 %r1, %r2, %r3;
add.s32 %r4, %r1, 5;
mov.u32 %r2, 7;
L:
add.s32 %r3, %r1, 5;
setp.lt.s32 %p1, %r3, %r4;
@%p1 bra L;
ret;
}
"""
    module = parse_module(text)
    program = Program(module, module.entries[0], {}, 0, False)
    built = build_instructions(program, InstructionCosts(load_target("sm_90a")))
    free = [instruction.ptx_line for instruction in built if instruction.deed == "free"]
    # A move, the second sum, the move; and in the loop what it does not change.
    assert free == [7, 9, 12, 14, 15]
