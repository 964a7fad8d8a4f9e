"""The machine instructions of each PTX instruction, read from the cubin that the assembler has made of it.

The assembler records for each machine instruction the line of the PTX that it comes from. What it has computed once,
moved out of a loop or left out has fewer instructions, a division has many, and the stall counts between them are the
assembler's schedule. Where it has unrolled or doubled a stretch of code, the mean of the copies counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

from tilec.emu.machine.steps import Step
from tilec.sass.cubin import read_functions
from tilec.sass.instruction import Instruction
from tilec.support.records import dataclass

_SPECIAL = ("MUFU", "F2I", "I2F", "FRND", "FCHK", "POPC", "0x100", "0x101")
"""Instructions of the unit of special functions; the last two are FLO and BREV."""
_INTEGER = ("ISETP", "IADD3", "VIADD", "LOP3", "SHF", "SEL", "PRMT", "FSETP", "FMNMX", "VIMNMX", "LEA", "IABS", "F2FP",
            "PLOP3", "P2R", "R2P", "I2FP", "FSEL", "HMNMX2", "BMSK", "SGXT", "HSETP2")  # fmt: skip
"""Instructions of the integer unit, which compares and packs numbers of other types as well."""
_FLOAT = {"FFMA": 1, "FMUL": 1, "FADD": 1, "HFMA2": 1, "HADD2": 1, "HMUL2": 1, "IMAD": 2}
"""Instructions of the floating-point unit, and their cycles: half of it multiplies whole numbers too."""
_LASTING = ("LDS", "STS", "LDG", "STG", "LDSM", "STSM", "SHFL", "HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "LDGSTS",
            "UTMALDG", "UTMASTG", "BAR", "RED", "ATOMG", "ATOMS")  # fmt: skip
"""Instructions of which each copy of the code has one for one of the PTX: they tell how many copies there are."""


@dataclass(frozen=True, slots=True)
class MachineStep:
    """The machine instructions of a PTX instruction, for each time that it runs: how many issue, the sum of their stall
    counts, and how many use the units of special functions, of integers and of floating-point numbers."""

    issued: float
    stalls: float
    special: float
    integer: float
    floating: float


MachineLines = Mapping[int, Sequence[Instruction]]
"""The machine instructions of each line of the PTX."""


def read_machine_lines(cubin: bytes, entry: str) -> MachineLines:
    """Return the machine instructions of a kernel by the lines of its PTX, without the calls behind its last exit;
    nothing where the cubin has no such lines."""
    try:
        function = next((each for each in read_functions(cubin) if each.name == entry), None)
    except ValueError:
        return {}
    code = () if function is None else function.instructions
    end = max((at for at, one in enumerate(code) if one.name == "EXIT"), default=-1)
    found: dict[int, list[Instruction]] = {}
    for one in code[: end + 1]:
        if one.ptx_line is not None:
            found.setdefault(one.ptx_line, []).append(one)
    return found


def count_machine_steps(steps: Sequence[Step], lines: MachineLines, free: Sequence[bool]) -> list[MachineStep | None]:
    """Return the machine instructions of each step; None where it has none. Those of steps that are `free`, which no
    replay sees, are spread over the others of their stretch of straight code."""
    found: list[MachineStep | None] = [None] * len(steps)
    loops = [(step.target, pc) for pc, step in enumerate(steps) if step.target is not None and step.target <= pc]
    for first, end in _list_straight_stretches(steps):
        own = {pc: lines.get(steps[pc].instruction.line, ()) for pc in range(first, end)}
        around = min(
            ((a, b) for a, b in loops if a <= first and end <= b + 1), key=lambda at: at[1] - at[0], default=None
        )
        copies = _count_copies(steps, lines, range(first, end))
        if not copies and around is not None:
            copies = _count_copies(steps, lines, range(around[0], around[1] + 1))
        seen = sum(len(code) for pc, code in own.items() if not free[pc])
        spread = sum(map(len, own.values())) / seen if seen else 1.0
        for pc, code in own.items():
            if code and not free[pc]:
                names, stalls = [one.name for one in code], sum(max(one.control.stall, 1) for one in code)
                special, integer = (sum(name in unit for name in names) for unit in (_SPECIAL, _INTEGER))
                floating, each = sum(_FLOAT.get(name, 0) for name in names), 1 / max(copies, 1)
                counts = special * each, integer * spread * each, floating * spread * each
                found[pc] = MachineStep(len(code) * spread * each, stalls * spread * each, *counts)
    return found


def _list_straight_stretches(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Yield the first step of each stretch of straight code, and the one behind its last: branches end one, their
    targets begin one."""
    entered = {step.target for step in steps if step.target is not None}
    first = 0
    for pc, step in enumerate(steps):
        if pc in entered and first < pc:
            yield first, pc
            first = pc
        if step.target is not None or step.stem in ("ret", "exit"):
            yield first, pc + 1
            first = pc + 1
    if first < len(steps):
        yield first, len(steps)


def _count_copies(steps: Sequence[Step], lines: MachineLines, part: range) -> int:
    """Return how many copies of these steps the machine code has, by the instructions that each copy has; 0 where there
    are none of them."""
    counts = (sum(one.name in _LASTING for one in lines.get(steps[pc].instruction.line, ())) for pc in part)
    known = [count for count in counts if count]
    return median_low(known) if known else 0
