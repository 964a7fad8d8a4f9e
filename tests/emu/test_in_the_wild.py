"""Every opcode that real compilers were seen to emit is understood, and the assembler takes our spelling of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ptx_source import kernel

from tilec.emu import launch  # noqa: F401  (registers what instructions do)
from tilec.emu.machine.decode import Program
from tilec.ptx.assemble import assemble_module
from tilec.ptx.parse import parse_module

HERE = Path(__file__).parent
INSTRUCTIONS = [line for line in (HERE / "in_the_wild.txt").read_text().splitlines() if not line.startswith("#")]


def spellings() -> dict[str, list[str]]:
    """The instructions of spellings.txt by target."""
    table: dict[str, list[str]] = {}
    for line in (HERE / "spellings.txt").read_text().splitlines():
        if line.startswith("["):
            target = line.strip("[]")
            table[target] = []
        elif not line.startswith("#"):
            table[target].append(line)
    return table


SPELLINGS = spellings()
VARIABLES = ".func helper() { ret; }\n.const .align 4 .b32 constants[4];"
REGISTERS = ".param .align 16 .b8 passed[64]; .reg .f32 %f<160>; .reg .b32 %r<160>; .reg .b128 %wide; .reg .b8 %byte;"


def whole(instructions: list[str], *, target: str = "sm_90a") -> str:
    # nvcc's registers of 64 accumulators are more than the usual frame declares.
    body = "\n".join(["table: .branchtargets done;", *instructions, "done:"])
    frame = kernel("{\n" + REGISTERS + "\n" + body + "\n}", variables=VARIABLES, target=target, version="8.8")
    return frame.replace(".visible .entry k(.param .u64 out) ", ".visible .entry k(.param .u64 out) .reqntid 128 ")


def decode(ptx: str) -> Program:
    module = parse_module(ptx)
    (entry,) = module.entries
    return Program(module, entry, {}, 0)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_is_understood(instruction: str) -> None:
    program = decode(whole([instruction]))
    assert instruction.split()[0].rstrip(";") in {step.instruction.opcode for step in program.steps}


def test_the_assembler_takes_them() -> None:
    assert assemble_module(whole(INSTRUCTIONS), "sm_90a").cubin


@pytest.mark.parametrize(("target", "instruction"), [(t, text) for t, group in SPELLINGS.items() for text in group])
def test_a_spelling_is_understood(target: str, instruction: str) -> None:
    program = decode(whole([instruction], target=target))
    assert instruction.split()[0].rstrip(";") in {step.instruction.opcode for step in program.steps}


@pytest.mark.parametrize("target", list(SPELLINGS))
def test_the_assembler_takes_the_spellings(target: str) -> None:
    assert assemble_module(whole(SPELLINGS[target], target=target), target).cubin
