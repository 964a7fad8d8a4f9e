"""The latencies of results of machine code, from the rows of a target file, and how long its instructions keep the
pipes of a scheduler.

The assembler's schedule leaves variable latencies to scoreboards. They are the only numbers of the target file that
enter the interval of a machine-code loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Literal

from tilec.sass.instruction import Instruction
from tilec.sass.opcodes import OpcodeKind
from tilec.support.records import dataclass
from tilec.target.names import InstructionKind
from tilec.target.table import Target, Timing

_LANES, _SCHEDULERS = 32, 4
_MANY = 64
"""Operations of a warp, so many that the cycles of one are not rounded."""
_K_BYTES = 32
"""Bytes of a row of A in one product of a warpgroup."""
_MOVES: dict[OpcodeKind, InstructionKind] = {
    "load": "ld.global", "atomic": "ld.global", "copy": "cp.async", "store": "st.global", "shared.load": "ld.shared",
    "shuffle": "ld.shared", "constant": "ld.shared", "shared.store": "st.shared", "matrix.load": "ldmatrix",
}  # fmt: skip
"""The rows that price accesses to memory, and what takes as long."""


@dataclass(frozen=True, slots=True)
class ResultLatency:
    """Cycles from an instruction's issue until its result is ready (`latency`) and until its operands have been read
    (`reading`), and cycles that it occupies the tensor cores (`tensor`)."""

    latency: int
    reading: int = 0
    tensor: int = 0


class Latencies:
    """The latencies of one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._moved = cache(self._move)
        self._product = cache(self._wgmma)
        self._mma = cache(lambda: _build_product_latency(target.price("mma.sync", count=1, warps=1)))
        self._mufu = cache(lambda: target.price("mufu", elements=_LANES).latency)
        self._mbarrier_issue = cache(lambda: target.price("mbarrier").issue)  # its phase is already complete
        self.barrier = cache(lambda: target.price("barrier").latency)
        self.float_cycles = cache(self._count_float_cycles)

    def of(self, one: Instruction) -> ResultLatency:
        """Return the latencies of a warp's instruction by its kind, undisturbed by others; an unknown kind counts as a
        special function."""
        if one.kind in _MOVES:
            return self._moved(_MOVES[one.kind], one.bytes or 4)
        match one.kind:
            case "mbarrier" if self.target.prices("mbarrier"):
                return ResultLatency(self._mbarrier_issue(), self._mbarrier_issue())
            case "mma":
                return self._mma()
            case "wgmma":
                return self._product(one.columns, one.is_from_registers)
            case _:
                return ResultLatency(self._mufu(), self._mufu())

    def _count_float_cycles(self) -> int:
        """Return the cycles for which a warp's float operation keeps the lanes of its scheduler."""
        threads = _SCHEDULERS * _LANES
        uses = self.target.price("elementwise", ops=1, elements=_MANY * threads, threads=threads).uses
        return max(cycles for _, cycles, _ in uses) // _MANY

    def _move(self, kind: InstructionKind, size: int) -> ResultLatency:
        """Return the latencies of a warp's memory access of `size` bytes a lane: of its result and of reading its
        operands."""
        kind_row = next(each for each in self.target.kinds if each.name == kind)
        parameters = {"bytes": size * _LANES, "threads": _LANES}
        latency = self.target.price(kind, **{name: parameters[name] for name in kind_row.parameters}).latency
        # A store holds its registers until it is done; a load has read its address after as long as a shared store.
        reading = latency if kind.startswith("st.") else self._moved("st.shared", size).latency
        return ResultLatency(latency, reading)

    def _wgmma(self, n: int, is_from_registers: bool) -> ResultLatency:
        """Return the latencies of a warpgroup's product of n columns, with A from registers or shared memory."""
        if is_from_registers:
            return _build_product_latency(self.target.price("wgmma.rs", n=n, count=1))
        return _build_product_latency(self.target.price("wgmma.ss", n=n, k_bytes=_K_BYTES, count=1))


def _build_product_latency(price: Timing) -> ResultLatency:
    """Return a product's latency, the cycles it occupies the tensor cores, and the difference as its reading time."""
    held = max((cycles for slot, cycles, _ in price.uses if slot == "tc_and_mma"), default=0)
    return ResultLatency(price.latency, price.latency - held, held)


# ---- pipes -----------------------------------------------------------------------------------------------------------

Pipe = Literal["integer", "multiply", "float", "special"]
"""The pipes of a scheduler, which issues one instruction a cycle; but a pipe of 16 lanes is busy with a warp's
instruction for two."""
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
"""Cycles for which a warp's instruction keeps pipes of 16 and of 4 lanes, a quarter of what the CUDA C++ Programming
Guide gives for a multiprocessor (throughput of native arithmetic instructions). Integer products take half of the lanes
of float arithmetic where that has 32, all of them where it has 16."""


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
