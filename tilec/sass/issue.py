"""Computes when one warp issues the instructions of a loop, by the assembler's own schedule.

A warp issues in order: after the stall count of the previous instruction, and once every scoreboard that the control
word names is 0. Other warps never delay it: barriers and mbarriers are passed at once. So the result is the least time
that an iteration takes of one warp, whatever else runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from tilec.sass.instruction import SCOREBOARDS, Control, Instruction
from tilec.sass.latencies import Latencies, ResultLatency
from tilec.sass.loops import COUNTED_KINDS, Loop, count_ptx_instructions
from tilec.sass.opcodes import OpcodeKind
from tilec.support.records import dataclass

_WARMUP_ITERATIONS = 4
"""Iterations after which an undisturbed warp repeats itself, with as much in flight as ever."""
_MEASURED_ITERATIONS = 6
"""Iterations of the mean: a multiple of the usual periods."""


_SPECIAL_KINDS: frozenset[OpcodeKind] = frozenset(("wait", "wgmma.sync", "barrier", *COUNTED_KINDS))
"""Kinds that may wait without a scoreboard, or by which iterations are counted."""
_Step: TypeAlias = tuple[Instruction, OpcodeKind, Control, int, ResultLatency]
"""An instruction with its kind, its control word, the cycles until the next instruction, and its result's latency."""


@dataclass(frozen=True, slots=True)
class WarpWait:
    """Cycles of an iteration that a warp waits before `at`, for the result of `producer`, which it issued `earlier`
    iterations before; None where it waits for a barrier or busy tensor cores."""

    cycles: float
    at: Instruction
    producer: Instruction | None
    earlier: int


@dataclass(frozen=True, slots=True)
class WarpInterval:
    """The time of one warp's iteration of a PTX loop, in cycles. `issue` counts stall counts alone, `cycles` also waits
    for scoreboards, barriers and the tensor cores. `waits` are these waits, longest first."""

    issue: float
    cycles: float
    waits: tuple[WarpWait, ...]


def sum_stalls(code: Sequence[Instruction]) -> int:
    """Return the sum of the instructions' stall counts in cycles, at least one for each."""
    return sum(max(1, one.control.stall) for one in code)


def measure_loop_interval(loop: Loop, latencies: Latencies) -> WarpInterval:
    """Return the mean cycles of one warp's iteration of a PTX loop in its steady state, and its waits."""
    warp = WarpReplay(latencies)
    body = build_steps(loop.body, latencies)
    if loop.is_straight:
        return _measure_straight_loop(warp, loop, body)
    start = 0.0
    for number in range(_WARMUP_ITERATIONS + _MEASURED_ITERATIONS):
        if number == _WARMUP_ITERATIONS:
            start, warp.waited = warp.now, {}
        for each in body:
            warp.issue(each)
        warp.iteration += 1
    iterations = _MEASURED_ITERATIONS * loop.unrolled
    return _build_interval(warp, loop, (warp.now - start) / iterations, iterations)


def build_steps(body: Iterable[Instruction], latencies: Latencies) -> list[_Step | int]:
    """Return a loop body as instructions that use a scoreboard or may wait, and the sums of cycles of those in
    between."""
    found: list[_Step | int] = []
    cycles = 0
    for one in body:
        word, kind = one.control, one.kind
        stall = max(1, word.stall)
        if kind in _SPECIAL_KINDS or word.waits or word.writes is not None or word.reads is not None:
            found.append(cycles)
            found.append((one, kind, word, stall, latencies.of(one)))
            cycles = 0
        else:
            cycles += stall
    return [*found, cycles]


def _measure_straight_loop(warp: WarpReplay, loop: Loop, body: Iterable[_Step | int]) -> WarpInterval:
    """Return the interval of an unrolled loop without a back branch, replayed once. It is the mean time between the
    copies of an instruction that each iteration has once, or of the whole loop where the assembler left no such."""
    counted = count_ptx_instructions(loop.body)
    once_each = next((origin for origin, times in counted.items() if times == loop.unrolled), None)
    starts = []
    for each in body:
        warp.issue(each)
        if not isinstance(each, int) and (each[0].ptx_line, each[0].opcode) == once_each:
            starts.append(warp.issued)
            warp.iteration += 1
            if len(starts) == 1:
                warp.waited = {}
    if len(starts) < 2:
        return _build_interval(warp, loop, warp.now / loop.unrolled, loop.unrolled)
    return _build_interval(warp, loop, (starts[-1] - starts[0]) / (len(starts) - 1), loop.unrolled)


def _build_interval(warp: WarpReplay, loop: Loop, cycles: float, iterations: int) -> WarpInterval:
    """Return an interval of these cycles, with the stall counts and mean waits of an iteration."""
    issue = sum_stalls(loop.body) / loop.unrolled
    return WarpInterval(issue, cycles, tuple(warp.waits(iterations)))


@dataclass(frozen=True, slots=True)
class _PendingResult:
    """A result in flight, counted by a scoreboard or as a group of a warpgroup's products."""

    done: float
    producer: Instruction
    iteration: int


class WarpReplay:
    """A warp that issues instructions. `waited`: its waits by instruction, producer and iterations in between."""

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.now = self.issued = 0.0
        self.iteration = 0
        self.boards: list[list[_PendingResult]] = [[] for _ in range(SCOREBOARDS)]
        self.copies: _PendingResult | None = None
        self.products: list[_PendingResult] = []
        self.tensor_free = 0.0
        self.waited: dict[tuple[tuple[int, int], tuple[int, int] | None, int], WarpWait] = {}

    def issue(self, step: _Step | int) -> None:
        """Wait until a step can issue, record when its result is ready, and advance by its stall count; a number is
        cycles to pass."""
        if isinstance(step, int):
            self.now += step
            return
        one, kind, control, stall, result = step
        for board in control.waits:
            self._wait_for_pending(one, self.boards[board], 0)
        match kind:
            case "wait":
                board, left = one.awaited_scoreboard or (0, 0)
                self._wait_for_pending(one, self.boards[board], left)
            case "wgmma.sync":
                if (groups := one.max_pending_groups) is not None:
                    self._wait_for_pending(one, self.products, groups)
            case "barrier" if not one.only_arrives:
                self._wait_until(one, None, self.now + self.latencies.barrier())
            case "mma":
                self._wait_until(one, None, self.tensor_free)
        self._record_completion(one, kind, control, result)
        self.issued = self.now
        self.now += stall

    def _record_completion(self, one: Instruction, kind: OpcodeKind, control: Control, result: ResultLatency) -> None:
        """Add the instruction's result to the scoreboards and product groups that wait for it, with the cycle when it
        is ready."""
        begins = self.now
        if result.tensor:
            begins = max(begins, self.tensor_free)
            self.tensor_free = begins + result.tensor
        ended = self._make_pending(begins + result.latency, one)
        if kind == "copy":
            self.copies = max(self.copies, ended, key=lambda each: each.done if each is not None else 0.0)
        elif kind == "copy.commit":  # its scoreboard counts the copies before it
            ended, self.copies = self.copies or ended, None
        elif kind == "wgmma" and one.ends_group:
            self.products.append(ended)
        if control.writes is not None:
            self.boards[control.writes].append(ended)
        if control.reads is not None:
            self.boards[control.reads].append(self._make_pending(self.now + result.reading, one))

    def _make_pending(self, done: float, producer: Instruction) -> _PendingResult:
        """Return a result of this iteration that is ready at cycle `done`."""
        return _PendingResult(done, producer, self.iteration)

    def _wait_for_pending(self, one: Instruction, pending: list[_PendingResult], left: int) -> None:
        """Wait until at most `left` of the pending results remain, and remove those that have ended, earliest first."""
        pending.sort(key=lambda each: each.done)
        awaited = pending[: max(len(pending) - left, 0)]
        if awaited:
            last = awaited[-1]
            self._wait_until(one, last, last.done)
            del pending[: len(awaited)]

    def _wait_until(self, one: Instruction, pending: _PendingResult | None, until: float) -> None:
        """Advance to cycle `until`, if ahead, and add that to the instruction's waits for this producer (None: for no
        result)."""
        if until > self.now:
            producer = pending.producer if pending is not None else None
            earlier = self.iteration - pending.iteration if pending is not None else 0
            key = (_identify_instruction(one), None if producer is None else _identify_instruction(producer), earlier)
            before = self.waited.get(key)
            cycles = until - self.now + (before.cycles if before is not None else 0.0)
            self.waited[key] = WarpWait(cycles, one, producer, earlier)
            self.now = until

    def waits(self, iterations: int) -> Iterator[WarpWait]:
        """Yield the waits, longest first, with their cycles divided by the number of iterations."""
        for wait in sorted(self.waited.values(), key=lambda wait: -wait.cycles):
            yield WarpWait(wait.cycles / iterations, wait.at, wait.producer, wait.earlier)


def _identify_instruction(one: Instruction) -> tuple[int, int]:
    """Return a key that an instruction shares with its copies in unrolled iterations: PTX line, or else address, and
    opcode."""
    return (one.address, one.opcode) if one.ptx_line is None else (one.ptx_line, one.opcode)
