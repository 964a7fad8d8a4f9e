"""Counts for how long the instructions of one warp keep the busiest pipe of its scheduler.

A scheduler issues one instruction a cycle, but not all pipes take one: a pipe of 16 lanes is busy with a warp's
instruction for two cycles. Lanes are those of the CUDA C++ Programming Guide (throughput of native arithmetic
instructions), of each of four schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from tilec.sass.instruction import Instruction

Pipe = Literal["integer", "multiply", "float", "special"]
_PIPE_NAMES: dict[Pipe, str] = {
    "integer": """
        F2FP FMNMX FMNMX3 FSEL FSETP HMNMX2 I2FP IABS IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 PRMT SEL SGXT SHF VIADD
        VIADDMNMX VIMNMX VIMNMX3 VOTE
    """,
    "multiply": "IMAD",
    "float": "FADD FFMA FMUL HADD2 HFMA2 HMUL2",
    "special": "F2I FRND I2F MUFU POPC",
}
_PIPE_OF_NAME: dict[str, Pipe] = {name: pipe for pipe, names in _PIPE_NAMES.items() for name in names.split()}
_INTEGER_CYCLES, _SPECIAL_CYCLES = 2, 8
"""Cycles for which a warp's instruction keeps pipes of 16 and of 4 lanes. Integer products take half of the lanes of
float arithmetic where that has 32, all of them where it has 16."""


def count_pipe_cycles(code: Iterable[Instruction], float_cycles: int) -> int:
    """Return the cycles for which a warp's instructions keep the busiest pipe, or their scheduler, of which a float
    operation takes `float_cycles`."""
    names = Counter(one.name for one in code)
    uses: Counter[Pipe] = Counter()
    for name, times in names.items():
        if (pipe := _PIPE_OF_NAME.get(name)) is not None:
            uses[pipe] += times
    return max(
        names.total(),
        _INTEGER_CYCLES * uses["integer"],
        _INTEGER_CYCLES * uses["multiply"],
        float_cycles * (uses["multiply"] + uses["float"]),
        _SPECIAL_CYCLES * uses["special"],
    )
