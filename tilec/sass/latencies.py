"""The latencies of results of machine code, from the rows of a target file.

The assembler's schedule leaves variable latencies to scoreboards. They are the only numbers of the target file that
enter the interval of a machine-code loop.
"""

from __future__ import annotations

from functools import cache

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
