"""One pipelined loop of a trace, as part of a page: reservation table, overlapped iterations and the versions of rings
as drawings; bounds, statements, pools and what was tried as tables. It is made of the trace's record alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilec.report.html_parts import STAGES, escaped, svg, table
from tilec.sched.problem import UNLIMITED

_LABELS, _CHART, _ROW, _BAR, _LINE = 200, 860, 20, 14, 14
_NAME = 28


def loop_heading(loop: dict[str, Any]) -> str:
    return f"{loop['name']}: II {loop['ii']}, {loop['stages']} stages, {loop['status']}"


def loop_parts(loop: dict[str, Any]) -> Iterable[str]:
    """Everything about a loop, below its heading."""
    if loop["refutation"]:
        refutation = loop["refutation"]
        why = ", ".join(refutation["families"]) or refutation["why"]
        yield f"<p>II {refutation['ii']} is impossible: {escaped(why)}.</p>"
    if loop["status"] == "feasible":
        yield f"<p>{escaped(loop['proof'])}</p>"
    yield "<h3>Reservation table</h3>"
    yield '<p class="dim">One interval, folded. Colours are stages:' + _key(loop["stages"]) + "</p>"
    yield _reservations(loop)
    yield "<h3>Iterations</h3>"
    yield '<p class="dim">Dark: the statement holds a slot. Pale: its result is on its way. Marks: a new interval.</p>'
    yield _iterations(loop)
    bounds = sorted(loop["bounds"], key=lambda bound: -bound["ii"])
    rows = [(bound["ii"], bound["kind"], bound["culprit"]) for bound in bounds]
    yield "<h3>Bounds on the interval</h3>"
    yield table(("II ≥", "kind", "because"), rows, marked=[bound["binds"] for bound in bounds])
    yield "<h3>Statements</h3>"
    order = [loop["ops"][op] for op in loop["order"]]
    columns = ("id", "name", "role", "line", "stage", "start", "issue", "latency")
    yield table(columns, [tuple(op[column] for column in columns) for op in order])
    if "copies" in loop:
        first, *others = (loop["ops"][op]["role"] for op in loop["copies"][0])
        for role, lag in zip(others, loop["lags"][1:], strict=True):
            yield f"<p>{escaped(role)} runs {lag:,} cycles behind {escaped(first)}.</p>"
    if "ii_by_rule" in loop:
        yield f"<p>II {loop['ii']:,} with these roles, at least {loop['ii_by_rule']:,} with the roles by rule.</p>"
    yield from _compared(loop)
    if loop["rings"]:
        facts = ("name", "lifetime", "depth", "max_depth", "bytes", "total_bytes")
        yield "<h3>Rings</h3>"
        yield table(facts, [tuple(ring[fact] for fact in facts) for ring in loop["rings"]])
        yield "<h3>Ring occupancy</h3>"
        yield '<p class="dim">The versions of each ring. Pale: being filled. Dark: until it has been read.'
        yield "A colour is an iteration.</p>"
        yield _occupancy(loop)
    if loop["pools"]:
        yield "<h3>Pools</h3>"
        pools = loop["pools"]
        yield table(
            ("pool", "reserved", "rings", "values", "peak", "capacity", "", "carried"),
            [
                (p["name"], p["reserved"], p["rings"], p["values"], p["peak"], *_capacity(p), p["carried"])
                for p in pools
            ],
        )
    if loop["attempts"]:
        yield "<h3>Intervals tried</h3>"
        yield table(
            ("II", "outcome", "how", "why"),
            [
                (a["ii"] if a["from"] == a["ii"] else f"{a['from']}…{a['ii']}", a["outcome"], a["how"], a["why"])
                for a in loop["attempts"]
            ],
        )


def _compared(loop: dict[str, Any]) -> Iterable[str]:
    """What a roofline and list schedulers would have chosen, and what was optimised after the interval."""
    if loop["roofline"]:
        line = loop["roofline"]
        share = f"⌈{line['memory_cycles']:,} / {line['compute_cycles']:,}⌉ = {line['stages']}"
        yield f"<p>Stages: {loop['stages']}; by the roofline {share}.</p>"
    if loop["heuristics"]:
        reached = (f"{of['arm']} {'–' if of['ii'] is None else of['ii']}" for of in loop["heuristics"])
        yield f"<p>II by heuristics: {escaped(', '.join(reached))}.</p>"
    yield "<h3>After the interval, in this order</h3>"
    told = [(of["name"], of["value"], "yes" if of["proven"] else "no") for of in loop["objectives"]]
    yield table(("what", "value", "proven"), told)


def _capacity(pool: dict[str, Any]) -> tuple[str, str]:
    """A pool's capacity, and the share of it that is held."""
    capacity = pool["capacity"]
    if capacity >= UNLIMITED:
        return "no limit", ""
    return f"{capacity:,}", f"{100 * pool['peak'] // capacity} %" if capacity else ""


def _key(stages: int) -> str:
    return "".join(f'<span class="key s{stage % STAGES}"></span>{stage}' for stage in range(stages))


# ---- drawings --------------------------------------------------------------------------------------------------------


def _reservations(loop: dict[str, Any]) -> str:
    used = [slot for slot in loop["slots"] if slot["held"]]
    parts, ii = [], loop["ii"]
    for row, slot in enumerate(used):
        parts += _label(row, f"{slot['name']}  {slot['percent']} %")
        parts.append(f'<rect class="row" x="{_LABELS}" y="{row * _ROW + 2}" width="{_CHART}" height="{_BAR}"/>')
        for op in loop["ops"]:
            for held in op["rows"]:
                if held["slot"] == slot["name"]:
                    # Of several units each use takes its share of the colour: where all are held, it is full.
                    parts += [_bar(row, first, end, ii, op, slot["width"]) for first, end in held["rows"]]
    parts += [
        f'<text class="dim" x="{_LABELS}" y="{len(used) * _ROW + 14}">0</text>',
        f'<text class="dim" x="{_LABELS + _CHART}" y="{len(used) * _ROW + 14}" text-anchor="end">{ii}</text>',
    ]
    return svg(parts, _LABELS + _CHART, len(used) * _ROW + 20, "reservation table")


def _iterations(loop: dict[str, Any]) -> str:
    ii, ops = loop["ii"], loop["ops"]
    iterations = loop["stages"] + 2
    total = _cycles(loop)
    group = len(ops) * _LINE + 16
    parts = _intervals(loop, iterations * group)
    for iteration in range(iterations):
        top = iteration * group
        parts.append(f'<text class="dim" x="0" y="{top + 11}">iteration {iteration}</text>')
        for row, op in enumerate(ops):
            start, y = op["start"] + iteration * ii, top + 14 + row * _LINE
            parts.append(f'<text x="{_LABELS - 8}" y="{y + 10}" text-anchor="end">{escaped(_short(op["name"]))}</text>')
            busy = max([op["issue"], 1, *(sum(end - first for first, end in held["rows"]) for held in op["rows"])])
            cycles = f"cycles {start} to {start + op['latency']}"
            title = f"<title>{escaped(op['name'])}, iteration {iteration}, {cycles}, line {op['line']}</title>"
            colour = f"s{op['stage'] % STAGES}"
            for kind, held in ((f"{colour} flight", op["latency"]), (colour, busy)):
                parts.append(_span(kind, start, start + held, total, y, _LINE - 2, title))
    return svg(parts, _LABELS + _CHART, iterations * group, "overlapped iterations")


def _occupancy(loop: dict[str, Any]) -> str:
    """A row for each version: from when an iteration takes it until it has been read."""
    ii, ops, total = loop["ii"], loop["ops"], _cycles(loop)
    rows = sum(ring["depth"] for ring in loop["rings"])
    parts, top = _intervals(loop, rows * _ROW), 0
    for ring in loop["rings"]:
        taken = min((ops[op]["start"] for op in ring["producers"]), default=0)
        full = max((ops[op]["start"] + ops[op]["latency"] for op in ring["producers"]), default=0)
        free = taken + ring["lifetime"]
        for version in range(ring["depth"]):
            parts += _label(top + version, f"{_short(ring['name'])} [{version}]")
        for iteration in range(-(-total // ii)):
            version, since = iteration % max(ring["depth"], 1), iteration * ii
            times = f"taken at {taken + since}, full at {full + since}, free at {free + since}"
            title = f"<title>{escaped(ring['name'])}[{version}], iteration {iteration}: {times}</title>"
            y, colour = (top + version) * _ROW + 2, f"s{iteration % STAGES}"
            for kind, first, end in ((f"{colour} flight", taken, full), (colour, full, free)):
                if first < end and first + since < total:
                    parts.append(_span(kind, first + since, min(end + since, total), total, y, _BAR, title))
        top += ring["depth"]
    return svg(parts, _LABELS + _CHART, rows * _ROW, "ring occupancy")


def _cycles(loop: dict[str, Any]) -> int:
    """How long the iterations take that are drawn: two more than overlap."""
    intervals: int = (loop["stages"] + 1) * loop["ii"]
    return intervals + max((op["start"] + op["latency"] for op in loop["ops"]), default=1)


def _intervals(loop: dict[str, Any], height: int) -> list[str]:
    """A mark where each interval begins."""
    total, ii = _cycles(loop), loop["ii"]
    places = (_x(interval * ii, total) for interval in range(-(-total // ii)))
    return [f'<line class="mark" x1="{x}" y1="0" x2="{x}" y2="{height}"/>' for x in places]


def _span(kind: str, start: int, end: int, total: int, y: int, height: int, title: str) -> str:
    x = _x(start, total)
    place = f'x="{x}" y="{y}" width="{max(_x(end, total) - x, 1)}" height="{height}"'
    return f'<rect class="{kind}" {place}>{title}</rect>'


def _short(name: str) -> str:
    """As much of a name as there is room for beside a row."""
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def _label(row: int, text: str) -> list[str]:
    return [f'<text x="{_LABELS - 8}" y="{row * _ROW + 13}" text-anchor="end">{escaped(text)}</text>']


def _bar(row: int, first: int, end: int, ii: int, op: dict[str, Any], width: int) -> str:
    x, right = _x(first, ii), _x(end, ii)
    title = f"<title>{escaped(op['name'])}, stage {op['stage']}, rows {first} to {end}, line {op['line']}</title>"
    shade = f' fill-opacity="{1 / width:g}"' if width > 1 else ""
    place = f'x="{x}" y="{row * _ROW + 2}" width="{max(right - x, 1)}" height="{_BAR}"'
    return f'<rect class="s{op["stage"] % STAGES}"{shade} {place}>{title}</rect>'


def _x(cycle: int, total: int) -> int:
    return _LABELS + cycle * _CHART // max(total, 1)
