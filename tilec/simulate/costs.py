"""The costs of single warp instructions, from the rows of the target file.

The file prices statements of a whole block in whole cycles. Where a price is proportional to a count, a hundred
instructions are priced and divided, which keeps fractions of a cycle. Four warps run side by side, one in each quarter
of the multiprocessor; so a row's cycles for 128 lanes are the cycles that one warp holds its quarter's pipe.
"""

from __future__ import annotations

from functools import cache

from tilec.support.records import dataclass
from tilec.target.names import InstructionKind
from tilec.target.table import Target, Timing

_PRICED_TOGETHER = 100
"""Instructions that are priced at once, so that the rounding of one to whole cycles does not count."""
_EVEN = 0.5
"""The part that is written where as much is written as read."""
_LANES = 128
"""Lanes of the four quarters of a multiprocessor together."""


@dataclass(frozen=True, slots=True)
class PipeCost:
    """Cycles that an instruction holds a pipe of its quarter, and cycles until its result is ready."""

    name: str
    cycles: float
    latency: float


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cycles that a transfer takes at each port of the multiprocessor. `base` is the latency of the first byte,
    `latency` that of the whole transfer if it meets no other."""

    ports: tuple[tuple[str, float], ...]
    base: float
    latency: float


@dataclass(frozen=True, slots=True)
class ProductCost:
    """The cycles that a tensor-core product holds the tensor cores and the shared memory it reads (`reading`), the
    latency of its result, and the cycles until the issuing warp continues."""

    cycles: float
    reading: float
    latency: float
    issue: float


class InstructionCosts:
    """The instruction costs of one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.sms = target.limit("sms")
        self.clock_mhz = target.limit("clock_mhz")
        self.l2_bytes_per_cycle = target.limit("l2_bytes_per_cycle")
        self.l2_shared_bytes_per_cycle = target.find_limit("l2_shared_bytes_per_cycle")
        self.dram_bytes_per_cycle = target.limit("dram_bytes_per_cycle")
        self.dram_read_bytes_per_cycle = target.find_limit("dram_read_bytes_per_cycle") or self.dram_bytes_per_cycle
        self.dram_even_bytes_per_cycle = target.find_limit("dram_even_bytes_per_cycle") or self.dram_bytes_per_cycle
        self.pipe = cache(self._price_pipe)
        self.move = cache(self._price_transfer)
        self.wgmma = cache(self._price_wgmma)
        self.tcgen05 = cache(self._price_tcgen05)
        self.barrier = float(target.price("barrier").latency)
        self.mbarrier = float(target.price("mbarrier").latency)
        self.try_wait = float(target.price("mbarrier").issue)

    def price_written_byte(self, part: float) -> float:
        """Return how many bytes DRAM could read while it writes one, where `part` of all that it moves is written.

        It turns between reads and writes. The more is written, the fewer reads come between two turns, so that what
        they cost grows with that part; it is known where as much is written as read.
        """
        lost = self.dram_read_bytes_per_cycle / self.dram_even_bytes_per_cycle - 1
        return 1 + lost * part / _EVEN**2

    def _price_pipe(self, kind: str, times: int = 1) -> PipeCost:
        """Return the pipe, cycles and latency of `times` instructions in a row: "elementwise", "integer", "mufu" or
        "mma.sync"."""
        price = self.target.price
        if kind == "mma.sync":
            one, many = price("mma.sync", count=1, warps=1), price("mma.sync", count=_PRICED_TOGETHER, warps=1)
            cycles = _sum_held_cycles(many, "tc_and_mma") / _PRICED_TOGETHER
            return PipeCost("tensor", cycles * times, cycles * (times - 1) + one.latency)
        if kind == "mufu":
            one, many = price("mufu", elements=_LANES), price("mufu", elements=_LANES * _PRICED_TOGETHER)
        else:
            operation: InstructionKind = "elementwise" if kind == "elementwise" else "integer"
            one = price(operation, ops=1, elements=_LANES, threads=_LANES)
            many = price(operation, ops=_PRICED_TOGETHER, elements=_LANES, threads=_LANES)
        slot, cycles = next((slot, cycles / _PRICED_TOGETHER) for slot, cycles, _ in many.uses if slot != "issue")
        # The row counts from the issue; a dependent instruction may issue once the last lane has passed the pipe.
        after = one.latency - max(cycles for slot, cycles, _ in one.uses if slot != "issue")
        return PipeCost(slot, cycles * times, cycles * times - cycles + max(after, cycles))

    def _price_transfer(self, kind: InstructionKind, size: int) -> TransferCost:
        """Return the cycles at each port, and the latency, of one transfer of `size` bytes of this kind."""
        parameters = {"bytes": size, "threads": 32}
        kind_row = next(each for each in self.target.kinds if each.name == kind)
        given = {name: parameters[name] for name in kind_row.parameters}
        price = self.target.price(kind, **given)
        empty = self.target.price(kind, **{**given, "bytes": 0})
        many = self.target.price(kind, **{**given, "bytes": size * _PRICED_TOGETHER})
        # Fractions of a cycle matter where many small transfers follow each other; a minimum time does not scale.
        ports = []
        for (slot, cycles, _), (_, scaled, _) in zip(price.uses, many.uses, strict=True):
            if slot != "issue":
                exact = scaled / _PRICED_TOGETHER if scaled / _PRICED_TOGETHER > cycles - 1 else cycles
                ports.append((slot, exact / self.target.slot(slot).width))
        return TransferCost(tuple(ports), float(empty.latency), float(price.latency))

    def _price_wgmma(self, n: int, k_bytes: int, from_registers: bool) -> ProductCost:
        """Return the cost of a warpgroup's product of n columns and `k_bytes` of K, with A in registers or shared
        memory."""
        kind: InstructionKind = "wgmma.rs" if from_registers else "wgmma.ss"
        parameters = {"n": n} if from_registers else {"n": n, "k_bytes": k_bytes}
        one, many = (self.target.price(kind, count=count, **parameters) for count in (1, _PRICED_TOGETHER))
        cycles = _sum_held_cycles(many, "tc_and_mma") / _PRICED_TOGETHER
        issue = (many.issue - one.issue) / (_PRICED_TOGETHER - 1)
        drain = one.latency - max(cycles for _, cycles, _ in one.uses)
        return ProductCost(cycles, _sum_held_cycles(many, "tp_smem_rd") / _PRICED_TOGETHER, cycles + drain, issue)

    def _price_tcgen05(self, m: int, n: int, is_pair: bool, from_tensor_memory: bool) -> ProductCost:
        """Return the cost of a tcgen05 product of m rows and n columns, by one block or a pair. A is in tensor memory
        or shared memory."""
        kind: InstructionKind = "tcgen05.mma.ts" if from_tensor_memory else "tcgen05.mma.ss"
        if is_pair:
            kind = "tcgen05.mma.ts.pair" if from_tensor_memory else "tcgen05.mma.ss.pair"
        one, many = (self.target.price(kind, m=m, n=n, count=count) for count in (1, _PRICED_TOGETHER))
        cycles = _sum_held_cycles(many, "tc_and_mma") / _PRICED_TOGETHER
        return ProductCost(cycles, 0.0, float(one.latency), 1.0)


def _sum_held_cycles(price: Timing, slot: str) -> float:
    """Return the cycles that a price holds a slot."""
    return float(sum(cycles for name, cycles, _ in price.uses if name == slot))
