"""The timeline of a launch: arrivals, waits, phases and copies at its barriers, in order.

Time is the number of an event, not a cycle: the emulator knows the order of events and nothing of durations.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from tilec.support.records import dataclass

Position = tuple[int, int, int]
EventKind = Literal["arrive", "wait", "phase", "issue", "done"]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a block's threads, from `start` on for `length` events."""

    start: int
    length: int
    block: Position
    thread: int
    """The first thread; -1 for a barrier or a copy engine."""
    threads: str
    kind: EventKind
    name: str
    line: int


class Timeline:
    """Collects the events of a launch."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[Event] = []

    def add(
        self, block: Position, thread: int, threads: str, kind: EventKind, name: str, line: int, since: int = -1
    ) -> None:
        """Append an event that happens now, or that began at the earlier event `since`, and advance the event count."""
        self.now += 1
        start = self.now if since < 0 else since
        self.events.append(Event(start, max(self.now - start, 1), block, thread, threads, kind, name, line))


def format_chrome_trace(events: tuple[Event, ...]) -> str:
    """Return the events as a JSON trace for Perfetto and chrome://tracing: a process per block, a track per warp."""
    blocks = sorted({event.block for event in events}, key=lambda block: block[::-1])
    numbers = {block: number for number, block in enumerate(blocks)}
    drawn: list[dict[str, Any]] = []
    for block, number in numbers.items():
        drawn.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"block {block}"}})
    tracks = sorted({(numbers[event.block], _find_track(event)) for event in events})
    for number, track in tracks:
        name = f"warp {track}" if track >= 0 else "copies and phases"
        drawn.append({"ph": "M", "name": "thread_name", "pid": number, "tid": track + 1, "args": {"name": name}})
    for event in events:
        shared = {
            "name": f"{event.kind} {event.name}",
            "cat": event.kind,
            "pid": numbers[event.block],
            "tid": _find_track(event) + 1,
            "ts": event.start,
            "args": {"threads": event.threads, "PTX line": event.line},
        }
        shape = {"ph": "X", "dur": event.length} if event.kind == "wait" else {"ph": "i", "s": "t"}
        drawn.append({**shape, **shared})
    return json.dumps({"traceEvents": drawn, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _find_track(event: Event) -> int:
    """Return the warp of an event's thread, -1 for a barrier or a copy engine."""
    return event.thread // 32 if event.thread >= 0 else -1
