"""What `nvdisasm` says of a cubin, instruction by instruction: the other opinion that tests compare with."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tilec.ptx.disassemble import find_disassembler

_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.(\w+),")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r'^\s*//## File "(.*)", line (\d+)')
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.:]*)\s*([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Said:
    function: str
    address: int
    guard: str
    opcode: str
    operands: str
    target: int | None
    line: int | None
    """Of the source, or of the PTX, as was asked."""


def said(cubin: bytes, lines: str = "-g") -> list[Said]:
    program = find_disassembler()
    assert program is not None, "nvidia-cuda-nvdisasm is one of the packages that tests have"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        text = subprocess.run([program, "-c", lines, str(file)], capture_output=True, text=True, check=True).stdout
    labels: dict[tuple[str, str], int] = {}
    found: list[tuple[str, int, str, str, str, int | None]] = []
    function, line = "", None
    waiting: list[str] = []
    for each in text.splitlines():
        if match := _FUNCTION.match(each):
            function, line = match[1], None
        elif match := _LABEL.match(each):
            waiting.append(match[1])
        elif match := _LINE.match(each):
            line = int(match[2])
        elif match := _CODE.match(each):
            address = int(match[1], 16)
            labels |= {(function, label): address for label in waiting}
            waiting.clear()
            found.append((function, address, match[2] or "", match[3], match[4].strip(), line))
    return [
        Said(of, address, guard, opcode, operands, _target(of, opcode, operands, labels), line)
        for of, address, guard, opcode, operands, line in found
    ]


def _target(function: str, opcode: str, operands: str, labels: dict[tuple[str, str], int]) -> int | None:
    match = _TARGET.search(operands)
    return labels.get((function, match[1])) if match and opcode.partition(".")[0] == "BRA" else None
