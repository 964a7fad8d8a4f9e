"""Formats a simulation as text: total time, busy units, stalls of each role, and loop intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.simulate.grid import Simulation
from tilec.simulate.instructions import Instruction
from tilec.support.display import show_share
from tilec.support.records import dataclass

UNIT_NAMES = {
    "tensor": "tensor cores",
    "l2": "share of L2",
    "dram": "share of DRAM",
    "tp_smem_rd": "shared memory, reading",
    "tp_smem_wr": "shared memory, writing",
    "tp_gnic_rd": "path from L2",
    "tp_gnic_wr": "path to L2",
    "tp_tmem_rd": "tensor memory, reading",
    "tp_tmem_wr": "tensor memory, writing",
    "lsu": "load/store unit",
    "tma": "bulk copies",
    "xu": "special functions",
    "alu_or_fmaheavy": "fp32 arithmetic",
    "dual_alu": "integer arithmetic",
    "issue": "schedulers",
}
_MAX_CAUSES = 6
_FEW_PASSES = 4
"""Passes up to which a loop has no steady state."""


@dataclass(frozen=True, slots=True)
class LoopInterval:
    """Cycles from one pass of a loop to the next, in the steady state of a role."""

    role: str
    place: str
    line: int
    passes: int
    cycles: float


def measure_busy_units(found: Simulation) -> list[tuple[str, float]]:
    """Return the name and busy fraction of the time of each unit of a multiprocessor, the busiest first."""
    issued = sum(found.first.issued.values()) / 4
    held = {**found.first.held, "issue": issued}
    shown = [(UNIT_NAMES.get(name, name), cycles / found.first.cycles) for name, cycles in held.items()]
    return sorted(shown, key=lambda item: (-item[1], item[0]))


def group_warps_by_work(found: Simulation) -> list[tuple[str, list[int]]]:
    """Return the groups of warps that run nearly the same instructions, each named by its warp numbers."""
    by_work: dict[frozenset[int], list[int]] = {}
    for number, warp in enumerate(found.block.warps):
        by_work.setdefault(frozenset(pc for pc, _ in warp), []).append(number)
    merged: list[list[int]] = []
    for steps, warps in by_work.items():
        firsts = ((each, frozenset(pc for pc, _ in found.block.warps[each[0]])) for each in merged)
        similar = next((each for each, others in firsts if _is_same_work(steps, others)), None)
        if similar is None:
            merged.append(list(warps))
        else:
            similar.extend(warps)
    return [(_format_warps(sorted(warps)), sorted(warps)) for warps in sorted(merged, key=min)]


def _is_same_work(one: frozenset[int], other: frozenset[int]) -> bool:
    """Return whether two warps run nearly the same steps, four in five: those of a single elected warp may differ."""
    return len(one & other) >= 0.8 * max(len(one), len(other))


def _format_warps(warps: Sequence[int]) -> str:
    """Return warp numbers in words, such as `warps 0-3, 8`."""
    if len(warps) == 1:
        return f"warp {warps[0]}"
    runs: list[list[int]] = []
    for warp in warps:
        if runs and runs[-1][1] == warp - 1:
            runs[-1][1] = warp
        else:
            runs.append([warp, warp])
    return "warps " + ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)


def rank_stall_causes(found: Simulation, warps: Sequence[int]) -> list[tuple[str, str, float]]:
    """Return (cause, place, fraction of their time) of these warps' waits, the longest first."""
    total = sum(found.first.lifetime.get(warp, 0.0) for warp in warps)
    total = total or found.first.cycles * len(warps)
    lost: dict[tuple[str, str], float] = {}
    for (warp, pc, cause), cycles in found.first.stalls.items():
        if warp in warps:
            key = cause, found.instructions[pc].place
            lost[key] = lost.get(key, 0.0) + cycles
    shown = [(cause, place, cycles / total) for (cause, place), cycles in lost.items()]
    return sorted(shown, key=lambda item: (-item[2], item))


def measure_intervals(found: Simulation) -> list[LoopInterval]:
    """Return the steady interval of each role's most frequent loop, by the warp with most passes; roles without are
    left out."""
    shown = []
    for name, warps in group_warps_by_work(found):
        loops = {key: times for key, times in found.first.marks.items() if key[0] in warps and len(times) > _FEW_PASSES}
        if not loops:
            continue
        key = max(loops, key=lambda key: (len(loops[key]), -key[0]))
        times = loops[key]
        first = len(times) // 4
        instruction: Instruction = found.instructions[key[1]]
        cycles = (times[-1] - times[first]) / (len(times) - 1 - first)
        shown.append(LoopInterval(name, instruction.place, instruction.line, len(times), cycles))
    return shown


def measure_issuing_fraction(found: Simulation, warps: Sequence[int]) -> float:
    """Return the fraction of these warps' lifetime in which they issue."""
    lifetime = sum(found.first.lifetime.get(warp, 0.0) for warp in warps) or found.first.cycles * len(warps)
    return sum(found.first.issued.get(warp, 0.0) for warp in warps) / lifetime


def format_simulation(
    found: Simulation, name: str, target: str, scheduled: Sequence[int] = (), predicted: float | None = None
) -> Iterator[str]:
    """Yield the lines of the whole report: summary, busy units, waits of each role, and intervals. `scheduled` are the
    solved initiation intervals of the loops, `predicted` the microseconds that the cost model predicts."""
    yield from format_summary(found, name, target, predicted)
    yield "busy, of the time of one multiprocessor:"
    for unit, part in measure_busy_units(found):
        if part >= 0.02:
            yield f"  {show_share(part):>4}  {unit}"
    for role, warps in group_warps_by_work(found):
        yield f"{role}: {show_share(measure_issuing_fraction(found, warps))} issuing; waiting for"
        for cause, place, part in rank_stall_causes(found, warps)[:_MAX_CAUSES]:
            if part >= 0.01:
                yield f"  {show_share(part):>4}  {cause}, at {place}"
    yield from format_intervals(found, scheduled)


def format_summary(found: Simulation, name: str, target: str, predicted: float | None = None) -> Iterator[str]:
    """Yield the lines with the time of the whole grid, the rates of products and transfers, and the notes."""
    clock = found.clock_mhz
    micro = found.seconds * 1e6
    simulated = f"{micro:,.1f} µs simulated, {found.cycles:,.0f} cycles at {clock} MHz"
    if predicted is None:
        yield f"{name} on {target}: {simulated}"
    else:
        yield f"{name} on {target}: {predicted:,.1f} µs predicted; {simulated}"
        yield from _explain_gap(found, micro, predicted)
    block_count = f"{found.blocks} blocks on {found.active} of {found.costs.sms} multiprocessors"
    resident = f", {found.launch.resident} resident on each" if found.launch.resident > 1 else ""
    idle = show_share(found.tail / found.cycles)
    tail = f"; {idle} of the time some are idle, at the end" if found.tail > 0.005 * found.cycles else ""
    yield f"  {block_count}{resident}, {found.waves:.2f} waves{tail}"
    if found.flops:
        rate = found.flops / found.seconds / 1e12
        peak = _compute_peak_tflops(found)
        used = show_share(rate / peak)
        yield f"  {rate:,.0f} TFLOP/s in products, {used} of the {peak:,.0f} that the tensor cores could do"
    l2 = found.loaded / found.seconds / 1e9
    dram = found.missed / found.seconds / 1e9
    stored = found.stored / found.seconds / 1e9
    shared = show_share(1 - found.missed / max(found.loaded, 1e-9))
    yield f"  {l2:,.0f} GB/s loaded, of which {dram:,.0f} from DRAM ({shared} shared by a wave)"
    yield f"  {stored:,.0f} GB/s stored"
    for note in found.notes:
        yield f"  note: {note}"


def format_intervals(found: Simulation, scheduled: Sequence[int]) -> Iterator[str]:
    """Yield a line with the interval of each role's innermost loop, and one that compares with the solved intervals."""
    found_intervals = measure_intervals(found)
    for interval in found_intervals:
        shared = f", for each of {found.together} resident blocks" if found.together > 1 else ""
        yield f"interval of {interval.role} at {interval.place}: {interval.cycles:,.0f} cycles{shared}"
    if scheduled and found_intervals:
        yield _compare_with_schedule(found, found_intervals, scheduled)


def _explain_gap(found: Simulation, micro: float, predicted: float) -> Iterator[str]:
    """Yield a line that explains why simulation and the cost model of `tilec report` differ, if by more than 5
    percent."""
    ratio = micro / max(predicted, 1e-9)
    if ratio > 1.05:
        more = show_share(ratio - 1)
        yield f"  {more} more than predicted: the replay runs every instruction, and {_explain_pace(found)}"
    elif ratio < 0.95 and found.waves > 1:
        less = show_share(1 - ratio)
        yield (
            f"  {less} less than predicted: the replay starts a block as soon as one ends, the cost model starts "
            "whole waves"
        )
    elif ratio < 0.95:
        yield f"  {show_share(1 - ratio)} less than predicted: the replay overlaps more work than the cost model"


def _compare_with_schedule(found: Simulation, seen: Sequence[LoopInterval], scheduled: Sequence[int]) -> str:
    """Return a line with the solved interval, the reached one, and the cause of the difference. A schedule ignores
    other blocks: if several are resident, an iteration gets its share of their common interval."""
    reached = max(seen, key=lambda each: each.passes).cycles / found.together
    solved = min(scheduled, key=lambda ii: abs(ii - reached))
    both_intervals = f"an iteration: {solved:,} cycles solved, {reached:,.0f} reached"
    if reached <= 1.05 * solved:
        return f"{both_intervals}, as solved"
    return f"{both_intervals}: {show_share(reached / solved - 1)} longer, because {_explain_pace(found)}"


def _explain_pace(found: Simulation) -> str:
    """Return in words the unit that sets the pace, or else the longest wait of the warps that issue most."""
    unit, part = measure_busy_units(found)[0]
    if part >= 0.85:
        return f"the {unit} set{'' if unit.endswith('s') else 's'} the pace (busy {show_share(part)} of the time)"
    issued = found.first.issued
    name, warps = max(group_warps_by_work(found), key=lambda role: sum(issued.get(warp, 0.0) for warp in role[1]))
    cause, place, part = next(iter(rank_stall_causes(found, warps)), ("", "", 0.0))
    wait = "wait" if len(warps) > 1 else "waits"
    return f"{name} {wait} most for {cause}, at {place} ({show_share(part)} of the time)"


def _compute_peak_tflops(found: Simulation) -> float:
    """Return the TFLOP/s of the machine if its tensor cores ran the kernel's best product without pause."""
    best = 0.0
    for instruction in found.instructions:
        if not instruction.flops:
            continue
        if instruction.deed == "wgmma":
            cost = found.costs.wgmma(instruction.number, 32, instruction.flag)
            best = max(best, 4 * instruction.flops / cost.cycles)
        elif instruction.deed == "tcgen05.mma" and instruction.pc in found.block.details:
            m, n, is_pair, from_memory = found.block.details[instruction.pc]
            cost = found.costs.tcgen05(m, n, is_pair, from_memory)
            best = max(best, instruction.flops * m * n / cost.cycles / (2 if is_pair else 1))
        elif instruction.pipe is not None:
            best = max(best, 4 * instruction.flops / instruction.pipe.cycles)
    return max(best * found.costs.sms * found.clock_mhz * 1e6 / 1e12, 1e-9)
