"""The machine code of PTX instructions: what the assembler merges, expands, copies and leaves out."""

from __future__ import annotations

from tilec.emu import launcher  # noqa: F401 it registers the decoders
from tilec.emu.machine.decode import Program
from tilec.ptx.assemble import assemble_module
from tilec.ptx.parse import parse_module
from tilec.simulate.costs import InstructionCosts
from tilec.simulate.instructions import Instruction, build_instructions
from tilec.simulate.machine_code import MachineStep, count_machine_steps, read_machine_lines
from tilec.target.table import load_target

HEAD = """.version 8.4
.target sm_90a
.address_size 64
.file 1 "k.tl"
.visible .entry k() {
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .f32 %f<9>;
.reg .pred %p<2>;
.loc 1 1 1
mov.u32 %r1, %tid.x;
mad.wide.u32 %rd2, %r1, 4, 4096;
ld.global.f32 %f1, [%rd2];
ld.global.f32 %f2, [%rd2+1024];
"""


def read_code(body: str) -> tuple[list[MachineStep | None], tuple[Instruction, ...]]:
    """The machine code of each step of a kernel, and its instructions at that cost."""
    text = f"{HEAD}{body}ret;\n}}\n"
    module = parse_module(text)
    program = Program(module, module.entries[0], {}, 0, False)
    lines = read_machine_lines(assemble_module(text, "sm_90a").cubin, "k")
    costs = InstructionCosts(load_target("sm_90a"))
    steps = count_machine_steps(program.steps, lines, [False] * len(program.steps))
    return steps, build_instructions(program, costs, lines)


def test_what_the_assembler_merges_and_expands() -> None:
    steps, built = read_code(
        "div.rn.f32 %f3, %f1, %f2;\nadd.f32 %f4, %f1, %f2;\nadd.f32 %f5, %f1, %f2;\nmul.f32 %f6, %f3, %f4;\n"
        "mul.f32 %f7, %f6, %f5;\nst.global.f32 [%rd2], %f7;\n"
    )
    division, first, again = steps[4:7]
    assert division is not None and division.special == 2 and division.issued >= 8
    assert division.stalls > division.issued
    assert (first is None) != (again is None)
    assert [one.deed for one in built[5:7]].count("free") == 1
    assert built[4].pipe is not None and built[4].pipe.name == "xu"
    assert built[7].pipe is not None and built[7].pipe.name == "alu_or_fmaheavy"


def test_copies_of_an_unrolled_loop_count_as_one() -> None:
    steps, built = read_code(
        "mov.u32 %r2, 0;\nL:\nld.global.f32 %f3, [%rd2+2048];\nfma.rn.f32 %f1, %f3, %f2, %f1;\n"
        "add.u64 %rd2, %rd2, 512;\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, 4096;\n@%p1 bra L;\n"
        "st.global.f32 [%rd2], %f1;\n"
    )
    load, product = steps[5:7]
    assert load is not None and 0.9 < load.issued < 1.5
    assert product is not None and 0.9 < product.issued < 1.5
    # The counter of the loop counts once for all copies.
    assert sum(one.issue for one in built[5:11]) < 6


def test_a_cubin_that_is_none_tells_nothing() -> None:
    assert read_machine_lines(b"", "k") == {}
    assert read_machine_lines(assemble_module(f"{HEAD}ret;\n}}\n", "sm_90a").cubin, "other") == {}
