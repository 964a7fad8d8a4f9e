"""The schedule trace as one page of HTML: reservation tables and overlapped iterations as SVG, bounds, rings and pools.

The page holds everything: no script, no font and no picture from elsewhere, and colours for light and dark. It is made
of the trace's record alone, so that it shows what the trace says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from tilec.sched.problem import UNLIMITED

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d7dce2; --dim: #626a73;
  --s0: #2f6fde; --s1: #2a9d62; --s2: #c98a12; --s3: #9a4fc4; --s4: #1f9aa8; --s5: #c84848; --bind: #c84848; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ed; --paper: #14171b; --faint: #343a42; --dim: #97a0aa;
  --s0: #6ea1ff; --s1: #5ccb92; --s2: #e5b44f; --s3: #c58be6; --s4: #5cc8d4; --s5: #f08080; --bind: #f08080; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--faint); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.binds td { font-weight: 600; color: var(--bind); } p.dim, .dim { color: var(--dim); }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .dim { fill: var(--dim); } svg .row { fill: none; stroke: var(--faint); } svg .mark { stroke: var(--faint); }
svg .flight { fill-opacity: .3; } .key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
"""
_STAGES = 6
_LABELS, _CHART, _ROW, _BAR = 200, 860, 20, 14


def page(trace: dict[str, Any]) -> str:
    """The page for a trace, as `sched.trace` makes it."""
    record = trace["tilec"]
    title = (record["kernel"] or "schedule") + (f" on {record['target']}" if record["target"] else "")
    about = f"Calibration: {record['calibration']}. Times are cycles." if record["calibration"] else "Times are cycles."
    loops = [part for loop in record["loops"] for part in _loop(loop)]
    body = "\n".join([*_decisions(record["decisions"]), *(loops or ["<p>No pipelined loop.</p>"])])
    colours = "\n".join(f".s{i} {{ fill: var(--s{i}); background: var(--s{i}); }}" for i in range(_STAGES))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}{colours}\n</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="dim">{escape(about)}</p>\n{body}\n</body>\n</html>\n'
    )


def _decisions(decisions: list[dict[str, str]]) -> Iterable[str]:
    if decisions:
        yield "<h2>Decisions</h2>"
        rows = [(d["what"], d["chosen"], d["by"], d["why"]) for d in decisions]
        yield _table(("what", "decision", "by", "because"), rows)


def _loop(loop: dict[str, Any]) -> Iterable[str]:
    yield f"<h2>{escape(loop['name'])}: II {loop['ii']}, {loop['stages']} stages, {escape(loop['status'])}</h2>"
    if loop["refutation"]:
        refutation = loop["refutation"]
        why = ", ".join(refutation["families"]) or refutation["why"]
        yield f"<p>II {refutation['ii']} is impossible: {escape(why)}.</p>"
    if loop["status"] == "feasible":
        yield f"<p>{escape(loop['proof'])}</p>"
    yield "<h3>Reservation table</h3>"
    yield '<p class="dim">One interval, folded. Colours are stages:' + _key(loop["stages"]) + "</p>"
    yield _reservations(loop)
    yield "<h3>Iterations</h3>"
    yield '<p class="dim">Dark: the statement holds a slot. Pale: its result is on its way.</p>'
    yield _iterations(loop)
    bounds = sorted(loop["bounds"], key=lambda bound: -bound["ii"])
    rows = [(bound["ii"], bound["kind"], bound["culprit"]) for bound in bounds]
    yield "<h3>Bounds on the interval</h3>"
    yield _table(("II ≥", "kind", "because"), rows, marked=[bound["binds"] for bound in bounds])
    yield "<h3>Statements</h3>"
    order = [loop["ops"][op] for op in loop["order"]]
    columns = ("id", "name", "role", "line", "stage", "start", "issue", "latency")
    yield _table(columns, [tuple(op[column] for column in columns) for op in order])
    if "copies" in loop:
        first, *others = (loop["ops"][op]["role"] for op in loop["copies"][0])
        for role, lag in zip(others, loop["lags"][1:], strict=True):
            yield f"<p>{escape(role)} runs {lag:,} cycles behind {escape(first)}.</p>"
    if "ii_by_rule" in loop:
        yield f"<p>II {loop['ii']:,} with these roles, at least {loop['ii_by_rule']:,} with the roles by rule.</p>"
    yield from _compared(loop)
    if loop["rings"]:
        facts = ("name", "lifetime", "depth", "max_depth", "bytes", "total_bytes")
        yield "<h3>Rings</h3>"
        yield _table(facts, [tuple(ring[fact] for fact in facts) for ring in loop["rings"]])
    if loop["pools"]:
        yield "<h3>Pools</h3>"
        pools = loop["pools"]
        yield _table(
            ("pool", "reserved", "rings", "values", "peak", "capacity", "", "carried"),
            [
                (p["name"], p["reserved"], p["rings"], p["values"], p["peak"], *_capacity(p), p["carried"])
                for p in pools
            ],
        )
    if loop["attempts"]:
        yield "<h3>Intervals tried</h3>"
        yield _table(
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
        yield f"<p>II by heuristics: {escape(', '.join(reached))}.</p>"
    yield "<h3>After the interval, in this order</h3>"
    told = [(of["name"], of["value"], "yes" if of["proven"] else "no") for of in loop["objectives"]]
    yield _table(("what", "value", "proven"), told)


def _capacity(pool: dict[str, Any]) -> tuple[str, str]:
    """A pool's capacity, and the share of it that is held."""
    capacity = pool["capacity"]
    if capacity >= UNLIMITED:
        return "no limit", ""
    return f"{capacity:,}", f"{100 * pool['peak'] // capacity} %" if capacity else ""


def _key(stages: int) -> str:
    return "".join(f'<span class="key s{stage % _STAGES}"></span>{stage}' for stage in range(stages))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], marked: Sequence[bool] = ()) -> str:
    listed = list(rows)
    numeric = [all(isinstance(row[i], int) or row[i] is None for row in listed) for i in range(len(head))]
    kinds = [' class="n"' if is_number else "" for is_number in numeric]
    cells = "".join(f"<th{k}>{escape(name.replace('_', ' '))}</th>" for k, name in zip(kinds, head, strict=True))
    lines = [f"<table><tr>{cells}</tr>"]
    for index, row in enumerate(listed):
        mark = ' class="binds"' if index < len(marked) and marked[index] else ""
        texts = ("–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        cells = "".join(f"<td{k}>{escape(text)}</td>" for k, text in zip(kinds, texts, strict=True))
        lines.append(f"<tr{mark}>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


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
    return _svg(parts, len(used) * _ROW + 20, "reservation table")


def _iterations(loop: dict[str, Any]) -> str:
    ii, ops = loop["ii"], loop["ops"]
    iterations = loop["stages"] + 2
    total = max((op["start"] + op["latency"] for op in ops), default=1) + (iterations - 1) * ii
    parts = []
    height = iterations * len(ops) * (_ROW // 2) + iterations * 6
    for interval in range(-(-total // ii) + 1):
        x = _x(interval * ii, total)
        parts.append(f'<line class="mark" x1="{x}" y1="0" x2="{x}" y2="{height}"/>')
    for iteration in range(iterations):
        top = iteration * (len(ops) * (_ROW // 2) + 6)
        parts.append(f'<text x="0" y="{top + 10}">iteration {iteration}</text>')
        for row, op in enumerate(ops):
            start, y = op["start"] + iteration * ii, top + row * (_ROW // 2)
            busy = max([op["issue"], 1, *(sum(end - first for first, end in held["rows"]) for held in op["rows"])])
            title = f"<title>{escape(op['name'])}, iteration {iteration}, line {op['line']}</title>"
            colour = f"s{op['stage'] % _STAGES}"
            for kind, cycles in ((f"{colour} flight", op["latency"]), (colour, busy)):
                width = max(_x(start + cycles, total) - _x(start, total), 1)
                place = f'x="{_x(start, total)}" y="{y + 1}" width="{width}" height="8"'
                parts.append(f'<rect class="{kind}" {place}>{title}</rect>')
    return _svg(parts, height, "overlapped iterations")


def _label(row: int, text: str) -> list[str]:
    return [f'<text x="{_LABELS - 8}" y="{row * _ROW + 13}" text-anchor="end">{escape(text)}</text>']


def _bar(row: int, first: int, end: int, ii: int, op: dict[str, Any], width: int) -> str:
    x, right = _x(first, ii), _x(end, ii)
    title = f"<title>{escape(op['name'])}, stage {op['stage']}, rows {first} to {end}, line {op['line']}</title>"
    shade = f' fill-opacity="{1 / width:g}"' if width > 1 else ""
    place = f'x="{x}" y="{row * _ROW + 2}" width="{max(right - x, 1)}" height="{_BAR}"'
    return f'<rect class="s{op["stage"] % _STAGES}"{shade} {place}>{title}</rect>'


def _x(cycle: int, total: int) -> int:
    return _LABELS + cycle * _CHART // max(total, 1)


def _svg(parts: Iterable[str], height: int, name: str) -> str:
    box = f'viewBox="0 0 {_LABELS + _CHART} {height}"'
    return f'<svg {box} role="img" aria-label="{name}">\n' + "\n".join(parts) + "\n</svg>"
