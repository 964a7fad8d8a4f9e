"""When one warp issues the instructions of a loop, by the assembler's own schedule.

A warp issues in order: after the stall count of the instruction before, and once every scoreboard that the control word
names is at 0. Other warps are as fast as they need to be: a barrier or an mbarrier is passed at once. So this is
the least that an iteration takes of one warp's time, whatever else runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tilec.sass.control import SCOREBOARDS, Control
from tilec.sass.instruction import Instruction
from tilec.sass.latencies import Latencies, Result
from tilec.sass.loops import Loop, of_loop
from tilec.support.records import dataclass

_SETTLES = 4
"""Iterations after which a warp that nothing disturbs does the same in each: what is in flight is then as much as ever
will be."""
_MEASURED = 6
"""Iterations over which a mean is taken: a multiple of what alternates."""


_Step: TypeAlias = tuple[Instruction, Control, Result]


@dataclass(frozen=True, slots=True)
class Wait:
    """`cycles` of an iteration in which a warp could issue `at`, and waits for `producer`, which was issued `earlier`
    iterations before; for nothing but other products (None) where the tensor cores are busy."""

    cycles: float
    at: Instruction
    producer: Instruction | None
    earlier: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Of an iteration of a loop of the PTX, for one warp. `issue`: cycles by stall counts alone; `cycles`: with waits
    for scoreboards, barriers and the tensor cores; `waits`: these, longest first."""

    issue: float
    cycles: float
    waits: tuple[Wait, ...]


def stalls(code: Sequence[Instruction]) -> int:
    """Cycles by stall counts: an instruction takes one at least to issue."""
    return sum(max(1, one.control.stall) for one in code)


def interval(loop: Loop, latencies: Latencies) -> Interval:
    """Of an iteration of the loop of the PTX, once it is under way."""
    warp = _Warp(latencies)
    body = [(one, one.control, latencies.of(one)) for one in loop.body]
    if loop.is_straight:
        return _straight(warp, loop, body)
    start = 0.0
    for number in range(_SETTLES + _MEASURED):
        if number == _SETTLES:
            start, warp.waited = warp.now, {}
        for each in body:
            warp.issue(*each)
        warp.iteration += 1
    iterations = _MEASURED * loop.unrolled
    return _interval(warp, loop, (warp.now - start) / iterations, iterations)


def _straight(warp: _Warp, loop: Loop, body: Sequence[_Step]) -> Interval:
    """The mean time between the first and the last of an instruction that each iteration has once."""
    counted = of_loop(loop.body)
    once = next(what for what, times in counted.items() if times == loop.unrolled)
    starts = []
    for each in body:
        warp.issue(*each)
        if (each[0].ptx_line, each[0].opcode) == once:
            starts.append(warp.issued)
            warp.iteration += 1
            if len(starts) == 1:
                warp.waited = {}
    return _interval(warp, loop, (starts[-1] - starts[0]) / (len(starts) - 1), loop.unrolled)


def _interval(warp: _Warp, loop: Loop, cycles: float, iterations: int) -> Interval:
    issue = stalls(loop.body) / loop.unrolled
    return Interval(issue, cycles, tuple(warp.waits(iterations)))


@dataclass(frozen=True, slots=True)
class _Pending:
    """Something that a scoreboard, or the count of a warpgroup's products, waits for."""

    done: float
    producer: Instruction
    iteration: int


class _Warp:
    """`waited` are the waits so far, by who waits and what for, and the iterations between."""

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.now = self.issued = 0.0
        self.iteration = 0
        self.boards: list[list[_Pending]] = [[] for _ in range(SCOREBOARDS)]
        self.copies: list[_Pending] = []
        self.products: list[_Pending] = []
        self.tensor_free = 0.0
        self.waited: dict[tuple[tuple[int, int], tuple[int, int] | None, int], Wait] = {}

    def issue(self, one: Instruction, control: Control, result: Result) -> None:
        """Waits until it can be issued, and notes when it will be done."""
        for board in control.waits:
            self._until(one, self.boards[board], 0)
        match one.kind:
            case "wait":
                board, left = one.waits_for_scoreboard or (0, 0)
                self._until(one, self.boards[board], left)
            case "wgmma.sync":
                if (groups := one.waits_for_groups) is not None:
                    self._until(one, self.products, groups)
            case "barrier" if not one.only_arrives:
                self._wait(one, None, self.now + self.latencies.barrier())
            case "mma":
                self._wait(one, None, self.tensor_free)
        self._done(one, control.writes, control.reads, result)
        self.issued = self.now
        self.now += max(1, control.stall)

    def _done(self, one: Instruction, writes: int | None, reads: int | None, result: Result) -> None:
        end = self.now + result.latency
        if result.tensor:
            begins = max(self.now, self.tensor_free)
            self.tensor_free = begins + result.tensor
            end = begins + result.latency
        match one.kind:
            case "copy":
                self.copies = [*self.copies[-7:], self._pending(end, one)]
            case "copy.commit":
                latest = max(self.copies, key=lambda pending: pending.done, default=None)
                if latest is not None and writes is not None:
                    self.boards[writes].append(latest)
                self.copies = []
                return
            case "wgmma" if one.ends_group:
                self.products.append(self._pending(end, one))
        if writes is not None:
            self.boards[writes].append(self._pending(end, one))
        if reads is not None:
            self.boards[reads].append(self._pending(self.now + result.reading, one))

    def _pending(self, done: float, producer: Instruction) -> _Pending:
        return _Pending(done, producer, self.iteration)

    def _until(self, one: Instruction, pending: list[_Pending], left: int) -> None:
        """Waits until no more than `left` are not done, in the order in which they end."""
        pending.sort(key=lambda each: each.done)
        awaited = pending[: max(len(pending) - left, 0)]
        if awaited:
            last = awaited[-1]
            self._wait(one, last, last.done)
            del pending[: len(awaited)]

    def _wait(self, one: Instruction, what: _Pending | None, until: float) -> None:
        """Where iterations follow each other in the text, the same wait of each is one."""
        if until > self.now:
            producer = what.producer if what is not None else None
            earlier = self.iteration - what.iteration if what is not None else 0
            key = (_origin(one), None if producer is None else _origin(producer), earlier)
            before = self.waited.get(key)
            cycles = until - self.now + (before.cycles if before is not None else 0.0)
            self.waited[key] = Wait(cycles, one, producer, earlier)
            self.now = until

    def waits(self, iterations: int) -> Iterator[Wait]:
        for wait in sorted(self.waited.values(), key=lambda wait: -wait.cycles):
            yield Wait(wait.cycles / iterations, wait.at, wait.producer, wait.earlier)


def _origin(one: Instruction) -> tuple[int, int]:
    """The same of an instruction in every iteration."""
    return (one.address, one.opcode) if one.ptx_line is None else (one.ptx_line, one.opcode)
