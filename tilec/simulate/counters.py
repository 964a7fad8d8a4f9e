"""The results of a simulation, under the names of Nsight Compute's metrics.

Both count machine instructions, the simulation as often as the PTX that they come from runs. It models no cache but the
sharing of loads by the blocks of a wave. docs/nsight.md says which counters correspond, and how closely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

from tilec.simulate.grid import Simulation
from tilec.simulate.instructions import Deed, Instruction, count_access_bytes, count_matrices
from tilec.simulate.record import INACTIVE, SECTOR_BYTES, TRANSACTION_BYTES
from tilec.simulate.state import SCHEDULERS, Cause
from tilec.support.records import dataclass

Unit = Literal["", "ns", "cycle", "hz", "inst", "byte", "byte/s", "sector", "request", "%", "warp"]
StallReason = Literal[
    "barrier", "gmma", "long_scoreboard", "math_pipe_throttle", "not_selected", "selected", "short_scoreboard", "wait"
]
"""A reason why a warp does not issue, as Nsight Compute names it."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A metric's name, unit (%: of 100) and simulated value."""

    name: str
    unit: Unit
    value: float


def compute_counters(found: Simulation) -> tuple[Counter, ...]:
    """Return all counters of a simulation: of the whole grid if the name ends in `.sum`, else of an average
    multiprocessor."""
    plain = (Counter(name, unit, float(count(found))) for name, unit, count in _PLAIN_COUNTERS)
    return (*plain, *_count_stalls(found))


def list_counter_names() -> tuple[str, ...]:
    """Return the names of all metrics that can be predicted."""
    stalls = (form.format(reason) for reason in _REASONS for form, _ in _STALLS)
    return (*(name for name, _, _ in _PLAIN_COUNTERS), *stalls)


def _count_equivalent_blocks(found: Simulation) -> float:
    """Return how many blocks like the recorded one have as many instructions as the whole grid."""
    return found.weight * math.prod(found.launch.cluster)


def _count_active_cycles(found: Simulation) -> float:
    """Return the active cycles of an average multiprocessor, without the idle tail; one without a block has none."""
    return (found.cycles - found.tail) * found.active / found.costs.sms


def _count_dram_bytes(found: Simulation) -> float:
    """Return the bytes that DRAM moves, both ways."""
    return found.missed + found.stored * found.shares.written


def _percent_dram(found: Simulation) -> float:
    """Return the bytes that DRAM moves, as a percentage of those that it could move in the time."""
    return (
        100
        * _count_dram_bytes(found)
        / found.seconds
        / (found.costs.dram_bytes_per_cycle * found.costs.clock_mhz * 1e6)
    )


def _percent_resident_warps(found: Simulation) -> float:
    """Return the mean number of resident warps, as a percentage of those that a multiprocessor can hold."""
    most = found.costs.target.limit("threads_per_sm") / 32
    return 100 * sum(found.first.lifetime.values()) / found.first.cycles / most


def _count_issued_per_cycle(found: Simulation) -> float:
    """Return the mean instructions that a scheduler issues in a cycle."""
    return sum(found.first.issued.values()) / SCHEDULERS / found.first.cycles


def _build_executed_counter(wanted: Callable[[Instruction], bool]) -> Callable[[Simulation], float]:
    """Return a function that counts the grid's warp instructions that pass `wanted`; some count twice, as two machine
    instructions."""

    def count_executed(found: Simulation) -> float:
        """Return the issue slots of the wanted instructions of the recorded block, scaled to the grid."""
        executed = ((found.instructions[pc], warps) for pc, warps in found.block.counts.items())
        issued = sum(warps * instruction.issue for instruction, warps in executed if wanted(instruction))
        return issued * _count_equivalent_blocks(found)

    return count_executed


def _count_special(found: Simulation) -> float:
    """Return the grid's warp instructions on the unit of special functions: the time for which the recorded block holds
    it, scaled, by that of one."""
    pipes = ((found.instructions[pc].pipe, warps) for pc, warps in found.block.counts.items())
    held = sum(pipe.cycles * warps for pipe, warps in pipes if pipe is not None and pipe.name == "xu")
    return held / found.costs.pipe("mufu").cycles * _count_equivalent_blocks(found)


def _select_products(*words: str) -> Callable[[Instruction], bool]:
    """Return a test for mma.sync instructions of one of these types."""

    def is_wanted(instruction: Instruction) -> bool:
        """Return whether an instruction is an mma.sync with one of these words in its opcode."""
        is_here = instruction.text.startswith(("mma.sync", "mma.sp"))
        return is_here and any(word in instruction.text.split(".") for word in words)

    return is_wanted


_FLOATS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m1", "e3m2", "e2m3")
_INTEGERS = ("s8", "u8", "s4", "u4", "b1")


def _list_accesses(found: Simulation, moves: tuple[str, ...]) -> Iterator[tuple[Instruction, int]]:
    """Yield each active load or store of these kinds in the recorded block, with its bytes. Shuffles use the same port
    but access no memory, and are left out."""
    accesses = {
        i.pc: i for i in found.instructions if i.move in moves and i.text.startswith(("ld", "st", "atom", "red"))
    }
    for warp in found.block.warps:
        for pc, detail in warp:
            instruction = accesses.get(pc)
            if instruction is not None and detail != INACTIVE:
                yield instruction, detail


def _build_access_counter(
    moves: tuple[str, ...], amount: Callable[[Instruction, int], float]
) -> Callable[[Simulation], float]:
    """Return a function that sums an amount over the accesses of these kinds, scaled from the recorded block to the
    grid."""

    def sum_amounts(found: Simulation) -> float:
        """Return the sum of the amount over the recorded accesses, scaled to the grid."""
        recorded = sum(amount(*access) for access in _list_accesses(found, moves))
        return recorded / found.block.part * _count_equivalent_blocks(found)

    return sum_amounts


def _count_request(instruction: Instruction, moved: int) -> float:
    """Return 1: each access is one request."""
    return 1


def _count_sectors(instruction: Instruction, moved: int) -> float:
    """Return the sectors of 32 bytes that an access moves."""
    return moved / SECTOR_BYTES


def _count_wavefronts(instruction: Instruction, moved: int) -> float:
    """Return the transactions of 128 bytes that an access takes."""
    return moved / TRANSACTION_BYTES


def _count_conflicts(instruction: Instruction, moved: int) -> float:
    """Return the transactions of an access beyond those that the bytes of a whole warp need."""
    is_matrix = "matrix" in instruction.text
    least = max(1, count_access_bytes(instruction.text) * 32 // TRANSACTION_BYTES)
    least = count_matrices(instruction.text) if is_matrix else least
    return max(0.0, moved / TRANSACTION_BYTES - least)


_LOADS_SHARED, _STORES_SHARED = ("ld.shared", "ldmatrix"), ("st.shared",)
_SHARED = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"

_PLAIN_COUNTERS: tuple[tuple[str, Unit, Callable[[Simulation], float]], ...] = (
    ("gpu__time_duration.sum", "ns", lambda found: found.seconds * 1e9),
    ("launch__grid_size", "", lambda found: found.blocks),
    ("launch__waves_per_multiprocessor", "", lambda found: found.waves),
    ("gpc__cycles_elapsed.avg.per_second", "hz", lambda found: found.clock_mhz * 1e6),
    ("sm__cycles_elapsed.max", "cycle", lambda found: found.cycles),
    ("sm__cycles_active.max", "cycle", lambda found: found.cycles),
    ("sm__cycles_active.avg", "cycle", _count_active_cycles),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", _percent_resident_warps),
    ("smsp__issue_active.avg.per_cycle_active", "inst", _count_issued_per_cycle),
    ("smsp__inst_executed.sum", "inst", _build_executed_counter(lambda instruction: True)),
    (
        "sm__inst_executed_pipe_tensor_op_gmma.sum",
        "inst",
        _build_executed_counter(lambda instruction: instruction.deed == "wgmma"),
    ),
    ("sm__inst_executed_pipe_tensor_op_hmma.sum", "inst", _build_executed_counter(_select_products(*_FLOATS))),
    ("sm__inst_executed_pipe_tensor_op_imma.sum", "inst", _build_executed_counter(_select_products(*_INTEGERS))),
    (
        "sm__inst_executed_pipe_xu.sum",
        "inst",
        _count_special,
    ),
    (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "%",
        lambda found: 100 * found.first.held.get("tensor", 0.0) / found.first.cycles,
    ),
    ("dram__bytes_read.sum", "byte", lambda found: found.missed),
    ("dram__bytes_write.sum", "byte", lambda found: found.stored * found.shares.written),
    ("dram__bytes.sum.per_second", "byte/s", lambda found: _count_dram_bytes(found) / found.seconds),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", _percent_dram),
    ("lts__t_sectors_op_read.sum", "sector", lambda found: found.loaded / SECTOR_BYTES),
    ("lts__t_sectors_op_write.sum", "sector", lambda found: found.stored / SECTOR_BYTES),
    (_GLOBAL.format("requests", "ld"), "request", _build_access_counter(("ld.global",), _count_request)),
    (_GLOBAL.format("sectors", "ld"), "sector", _build_access_counter(("ld.global",), _count_sectors)),
    (_GLOBAL.format("requests", "st"), "request", _build_access_counter(("st.global",), _count_request)),
    (_GLOBAL.format("sectors", "st"), "sector", _build_access_counter(("st.global",), _count_sectors)),
    (_WAVEFRONTS.format("ld"), "", _build_access_counter(_LOADS_SHARED, _count_wavefronts)),
    (_WAVEFRONTS.format("st"), "", _build_access_counter(_STORES_SHARED, _count_wavefronts)),
    (_SHARED.format("ld"), "", _build_access_counter(_LOADS_SHARED, _count_conflicts)),
    (_SHARED.format("st"), "", _build_access_counter(_STORES_SHARED, _count_conflicts)),
)


_REASONS: tuple[StallReason, ...] = (
    "barrier", "gmma", "long_scoreboard", "math_pipe_throttle", "not_selected", "selected", "short_scoreboard", "wait",
)  # fmt: skip
_STALLS: tuple[tuple[str, Unit], ...] = (
    ("smsp__average_warps_issue_stalled_{}_per_issue_active.ratio", "warp"),
    ("smsp__warp_issue_stalled_{}_per_warp_active.pct", "%"),
)
_CAUSE_REASONS: dict[Cause, StallReason] = {
    "scheduler": "not_selected",
    "the assembler's schedule": "wait",
    "fp32 arithmetic": "wait",
    "integer arithmetic": "wait",
    "special functions": "short_scoreboard",
    "shared memory": "short_scoreboard",
}

_PRODUCT_REASONS: dict[Deed, StallReason] = {"wgmma": "gmma", "wgmma.wait": "barrier"}


def find_stall_reason(cause: Cause, instruction: Instruction) -> StallReason:
    """Return Nsight Compute's name for a stall of this cause at this instruction, "long_scoreboard" by default."""
    if cause == "tensor cores":
        # A warp waits for a wgmma to begin, for one to end, or for the pipe of an mma.sync.
        return _PRODUCT_REASONS.get(instruction.deed, "math_pipe_throttle")
    if cause.startswith(("barrier", "cluster barrier")):
        return "barrier"
    return _CAUSE_REASONS.get(cause, "long_scoreboard")


def _count_stalls(found: Simulation) -> Iterator[Counter]:
    """Yield two counters for each stall reason: cycles by issued instruction, and percent of the warps' active
    cycles."""
    lost: dict[StallReason, float] = dict.fromkeys(_REASONS, 0.0)
    for (_, pc, cause), cycles in found.first.stalls.items():
        lost[find_stall_reason(cause, found.instructions[pc])] += cycles
    issued, lifetime = sum(found.first.issued.values()), sum(found.first.lifetime.values())
    lost["selected"] = issued
    for reason, cycles in lost.items():
        for form, unit in _STALLS:
            value = 100 * cycles / max(lifetime, 1e-9) if unit == "%" else cycles / max(issued, 1e-9)
            yield Counter(form.format(reason), unit, value)


def format_amount(value: float) -> str:
    """Return a number as text with three significant digits; whole and large numbers without decimals."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
