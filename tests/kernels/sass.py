"""Machine code as nvdisasm (test extra nvidia-cuda-nvdisasm) writes it: the instructions of a cubin, and its loops."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
_LABEL = re.compile(r"^(?P<name>\.L_\w+):")
_TARGET = re.compile(r"`\((?P<name>\.L_\w+)\)")


@dataclass(frozen=True)
class Instruction:
    address: int
    opcode: str
    operands: str

    @property
    def stem(self) -> str:
        return self.opcode.partition(".")[0]


def _nvdisasm() -> Path:
    files = importlib.metadata.files("nvidia-cuda-nvdisasm") or ()
    return next(Path(str(f.locate())) for f in files if f.name == "nvdisasm")


@dataclass(frozen=True)
class Code:
    """`loops` are the stretches of code that a branch leads back over, the shortest first."""

    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[Instruction, ...], ...]

    def around(self, *stems: str) -> tuple[Instruction, ...]:
        """The shortest loop with an instruction of these."""
        return next(loop for loop in self.loops if any(i.stem in stems for i in loop))


def disassembled(cubin: bytes, folder: Path) -> Code:
    """The code of a cubin with one kernel."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([_nvdisasm(), "-c", path], check=True, capture_output=True, text=True).stdout
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label["name"]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(Instruction(int(found["address"], 16), found["opcode"], found["operands"].strip()))
    loops = []
    for end, instruction in enumerate(instructions):
        target = _TARGET.search(instruction.operands) if instruction.stem == "BRA" else None
        if target and labels[target["name"]] <= end:
            loops.append(tuple(instructions[labels[target["name"]] : end + 1]))
    return Code(tuple(instructions), tuple(sorted(loops, key=len)))
