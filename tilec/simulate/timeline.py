"""Writes the replay of the first blocks as a trace for Perfetto and chrome://tracing: one cycle is one microsecond."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tilec.simulate.grid import Simulation

_MAX_SLICES = 60_000
"""Slices that are drawn, the earliest ones."""


def build_chrome_trace(found: Simulation, scheduled: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the replay's earliest slices as a JSON trace: a process for each multiprocessor, a track per warp and
    unit. The events of a schedule's own trace are added as further processes."""
    slices = sorted(found.first.slices, key=lambda each: (each.start, each.track))[:_MAX_SLICES]
    tracks = {track: number for number, track in enumerate(sorted({each.track for each in slices}, key=_order_track))}
    drawn: list[dict[str, Any]] = []
    for sm in sorted({each.sm for each in slices}):
        name = f"simulated: multiprocessor {sm}"
        drawn.append({"ph": "M", "name": "process_name", "pid": sm, "args": {"name": name}})
        for track, number in tracks.items():
            drawn.append({"ph": "M", "name": "thread_name", "pid": sm, "tid": number, "args": {"name": track}})
    ends: dict[tuple[int, str], float] = {}
    for each in slices:
        # Slices of one track must not overlap: the overlapping part of a later slice is cut off.
        start = max(each.start, ends.get((each.sm, each.track), 0.0))
        if each.end <= start:
            continue
        ends[each.sm, each.track] = each.end
        drawn.append(
            {"ph": "X", "name": each.name, "pid": each.sm, "tid": tracks[each.track], "ts": round(start, 2),
             "dur": round(each.end - start, 2), "args": {"line": each.line}}
        )  # fmt: skip
    for event in scheduled:
        drawn.append({**event, "pid": int(event.get("pid", 0)) + 1000})
    return json.dumps({"traceEvents": drawn, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _order_track(track: str) -> tuple[bool, int, str]:
    """Return a sort key of a track: units first, then warps by number."""
    is_warp = track.startswith("warp ")
    return is_warp, int(track[5:]) if is_warp else 0, track
