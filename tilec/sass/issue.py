"""When one warp issues the instructions of a loop, by the assembler's own schedule.

A warp issues in order: after the stall count of the instruction before, and once every scoreboard that the control word
names is at 0. Other warps are as fast as they need to be: a barrier or an mbarrier is passed at once. So this is
the least that an iteration takes of one warp's time, whatever else runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from tilec.sass.control import SCOREBOARDS, Control
from tilec.sass.instruction import Instruction
from tilec.sass.latencies import Latencies, Result
from tilec.sass.loops import COUNTED, Loop, of_loop
from tilec.sass.opcodes import Kind
from tilec.support.records import dataclass

_SETTLES = 4
"""Iterations after which a warp that nothing disturbs does the same in each: what is in flight is then as much as ever
will be."""
_MEASURED = 6
"""Iterations over which a mean is taken: a multiple of what alternates."""


_SPECIAL: frozenset[Kind] = frozenset(("wait", "wgmma.sync", "barrier", *COUNTED))
"""What may wait without a scoreboard, or is what iterations are counted by."""

_Step: TypeAlias = tuple[Instruction, Kind, Control, int, Result]
"""An instruction with its kind, its control word, the cycles until the next one, and its result."""


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
    body = _steps(loop.body, latencies)
    if loop.is_straight:
        return _straight(warp, loop, body)
    start = 0.0
    for number in range(_SETTLES + _MEASURED):
        if number == _SETTLES:
            start, warp.waited = warp.now, {}
        for each in body:
            warp.issue(each)
        warp.iteration += 1
    iterations = _MEASURED * loop.unrolled
    return _interval(warp, loop, (warp.now - start) / iterations, iterations)


def _steps(body: Iterable[Instruction], latencies: Latencies) -> list[_Step | int]:
    """What a warp does: instructions that have to do with a scoreboard or wait otherwise, and cycles for all others."""
    found: list[_Step | int] = []
    cycles = 0
    for one in body:
        word, kind = one.control, one.kind
        stall = max(1, word.stall)
        if kind in _SPECIAL or word.waits or word.writes is not None or word.reads is not None:
            found.append(cycles)
            found.append((one, kind, word, stall, latencies.of(one)))
            cycles = 0
        else:
            cycles += stall
    return [*found, cycles]


def _straight(warp: _Warp, loop: Loop, body: Iterable[_Step | int]) -> Interval:
    """The mean time between the first and the last of an instruction that each iteration has once."""
    counted = of_loop(loop.body)
    once = next(what for what, times in counted.items() if times == loop.unrolled)
    starts = []
    for each in body:
        warp.issue(each)
        if not isinstance(each, int) and (each[0].ptx_line, each[0].opcode) == once:
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
        self.copies: _Pending | None = None
        self.products: list[_Pending] = []
        self.tensor_free = 0.0
        self.waited: dict[tuple[tuple[int, int], tuple[int, int] | None, int], Wait] = {}

    def issue(self, step: _Step | int) -> None:
        """Waits until it can be issued, and notes when it will be done."""
        if isinstance(step, int):
            self.now += step
            return
        one, kind, control, stall, result = step
        for board in control.waits:
            self._until(one, self.boards[board], 0)
        match kind:
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
        self._done(one, kind, control, result)
        self.issued = self.now
        self.now += stall

    def _done(self, one: Instruction, kind: Kind, control: Control, result: Result) -> None:
        begins = self.now
        if result.tensor:
            begins = max(begins, self.tensor_free)
            self.tensor_free = begins + result.tensor
        ended = self._pending(begins + result.latency, one)
        if kind == "copy":
            self.copies = max(self.copies, ended, key=lambda each: each.done if each is not None else 0.0)
        elif kind == "copy.commit":  # whose scoreboard is that of the copies before it
            ended, self.copies = self.copies or ended, None
        elif kind == "wgmma" and one.ends_group:
            self.products.append(ended)
        if control.writes is not None:
            self.boards[control.writes].append(ended)
        if control.reads is not None:
            self.boards[control.reads].append(self._pending(self.now + result.reading, one))

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
