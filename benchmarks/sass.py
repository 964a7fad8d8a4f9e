"""What a disassembly shows of a kernel without running it: its main loop, and what is in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.:]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_REGISTER = re.compile(r"\bR(\d+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_BARRIERS = ("SYNCS", "BAR", "WARPSYNC", "UCGABAR", "MEMBAR", "FENCE", "ERRBAR", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")
_LOCAL = ("LDL", "STL")


@dataclass(frozen=True)
class Instruction:
    """`guard`: its predicate, or nothing; `target`: the label it branches to, as a position in the kernel."""

    guard: str
    opcode: str
    operands: str
    target: int | None = None

    @property
    def stem(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Code:
    """A kernel's instructions in the order of its text, without the padding behind its end."""

    instructions: tuple[Instruction, ...]

    def loops(self) -> list[tuple[Instruction, ...]]:
        """The stretches of code that a branch leads back over, the shortest first."""
        found = [
            self.instructions[one.target : at + 1]
            for at, one in enumerate(self.instructions)
            # A loop goes back under a condition; what goes back always is a wait's slow path, put out of the way.
            if one.target is not None and one.target <= at and one.guard
        ]
        return sorted(found, key=len)

    def around(self, *stems: str) -> tuple[Instruction, ...]:
        """The shortest loop with an instruction of these; all of the kernel where no loop has any."""
        return next((loop for loop in self.loops() if any(one.stem in stems for one in loop)), self.instructions)


@dataclass(frozen=True)
class Resources:
    """Of a thread at entry."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    """Of a block, without what its launch asks for."""


PRODUCTS = ("HGMMA", "QGMMA", "IGMMA")
"""What a warpgroup has its tensor cores do."""


def products(code: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The warpgroup's tensor-core instructions."""
    return tuple(one for one in code if one.stem in PRODUCTS)


def shapes(code: tuple[Instruction, ...]) -> tuple[str, ...]:
    """`64x128x16` of each kind of product, smallest first."""
    return tuple(sorted({one.opcode.split(".")[1] for one in products(code)}))


def accumulators(code: tuple[Instruction, ...]) -> int:
    """How many accumulators the products of a warpgroup add to: as many times 64 rows (or columns) it computes."""
    return len({one.operands.split(",")[0].strip() for one in products(code)})


def barriers(code: tuple[Instruction, ...]) -> int:
    """Instructions that wait for other warps or the tensor cores, or tell them something."""
    return sum(one.opcode.startswith(_BARRIERS) for one in code)


def local_accesses(code: tuple[Instruction, ...]) -> int:
    """Loads and stores of local memory, to which spilled registers go."""
    return sum(one.stem in _LOCAL for one in code)


@dataclass(frozen=True)
class Accesses:
    """Of global memory, by a thread. `narrow`: those of less than 16 bytes; `in_flight`: the most bytes under way at
    once."""

    loads: int
    stores: int
    narrow: int
    in_flight: int


def accesses(code: tuple[Instruction, ...]) -> Accesses:
    """What threads load and store themselves, by cp.async too, in the order of the text: what loops come to besides is
    not counted."""
    loads = [one for one in code if one.stem in ("LDG", "LDGSTS") and not one.operands.startswith("RZ")]
    stores = [one for one in code if one.stem == "STG"]
    narrow = sum(_width(one) < 16 for one in (*loads, *stores))
    return Accesses(len(loads), len(stores), narrow, _in_flight(code))


def _in_flight(code: tuple[Instruction, ...]) -> int:
    """Loads into registers end where one of these is read, and with them those before; copies, where any is waited
    for."""
    most = 0
    loads: list[tuple[set[int], int]] = []
    copies = 0
    for one in code:
        read = _registers(one.operands if one.stem != "LDG" else one.operands.partition(",")[2])
        needed = max((at for at, (into, _) in enumerate(loads) if into & read), default=-1)
        del loads[: needed + 1]
        if one.stem == "LDG" and not one.operands.startswith("RZ"):
            (first,) = _registers(one.operands.partition(",")[0])
            loads.append((set(range(first, first + max(_width(one) // 4, 1))), _width(one)))
        elif one.stem == "LDGSTS":
            copies += _width(one)
        elif one.opcode.startswith("DEPBAR"):
            copies = 0
        most = max(most, copies + sum(width for _, width in loads))
    return most


def _registers(operands: str) -> set[int]:
    return {int(number) for number in _REGISTER.findall(operands)}


def _width(access: Instruction) -> int:
    """Bytes of a thread's access."""
    found = next((part for part in access.opcode.split(".") if part.lstrip("US").isdecimal()), "32")
    return int(found.lstrip("US")) // 8


def tool(name: str) -> Path:
    """`nvdisasm` or `cuobjdump`: from the package nvidia-cuda-NAME, or on the path. Raises `FileNotFoundError`."""
    places = (Path(folder) / "nvidia" / "cu13" / "bin" / name for folder in sys.path)
    found = next((str(place) for place in places if place.exists()), None) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"pip install nvidia-cuda-{name}")
    return Path(found)


def disassembled(cubin: Path) -> Code:
    """The code of the first kernel of a cubin."""
    return Code(tuple(_parsed(_said(tool("nvdisasm"), "-c", cubin))))


def resources(cubin: Path) -> Resources:
    usage = _RESOURCES.search(_said(tool("cuobjdump"), "-res-usage", cubin))
    if usage is None:
        raise ValueError(f"{cubin}: cuobjdump names no resources")
    return Resources(int(usage[1]), int(usage[2]), int(usage[3]))


def _said(program: Path, option: str, cubin: Path) -> str:
    return subprocess.run([str(program), option, str(cubin)], capture_output=True, text=True, check=True).stdout


def _parsed(text: str) -> Iterator[Instruction]:
    labels: dict[str, int] = {}
    found: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif instruction := _INSTRUCTION.search(line):
            found.append((instruction[1] or "", instruction[2], instruction[3]))
    while found and found[-1][1] == "NOP":
        found.pop()
    for guard, opcode, operands in found:
        target = _TARGET.search(operands) if opcode.partition(".")[0] == "BRA" else None
        yield Instruction(guard, opcode, operands.strip(), labels[target[1]] if target else None)
