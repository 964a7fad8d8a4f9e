"""Draws overlapped iterations as a Gantt chart for the terminal: a line for each role of each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

if TYPE_CHECKING:
    from tilec.sched.problem import Op, Problem
    from tilec.sched.schedule import Schedule

STAGE_STYLES = ("blue", "green", "yellow", "magenta", "cyan", "red")
"""Styles of the stages, repeated cyclically."""

IN_FLIGHT = "─"


def get_letter(op: int) -> str:
    """Return the letter or digit that stands for a statement in a chart, `#` from the 63rd on."""
    return "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[op] if op < 62 else "#"


def get_stage_style(stage: int) -> str:
    """Return the colour of a stage, one of six in turn."""
    return STAGE_STYLES[stage % len(STAGE_STYLES)]


def draw_gantt(problem: Problem, schedule: Schedule, width: int) -> Group:
    """Return the chart of the iterations in flight and two more, a line for each role of each iteration. A letter: the
    statement holds a slot; a line: its result is in flight; `+`: several statements hold slots."""
    iterations = max(schedule.stage, default=0) + 3
    length = max((start + op.latency for op, start in zip(problem.ops, schedule.start, strict=True)), default=1)
    total = length + (iterations - 1) * schedule.ii
    roles = tuple(dict.fromkeys(op.role for op in problem.ops))
    margin = max(len(f"{iterations - 1} {role}") for role in roles)
    cycles = -(-total // max(8, width - margin - 2))
    columns = -(-total // cycles)
    lines = [Text(f"iterations: {cycles} cycle{'s' * (cycles > 1)} a column, an interval between two marks", "bold")]
    marks = [" "] * columns
    for interval in range(-(-total // schedule.ii)):
        marks[min(interval * schedule.ii // cycles, columns - 1)] = "|"
    lines.append(Text(" " * margin + " " + "".join(marks).rstrip(), "dim"))
    for iteration in range(iterations):
        for role in roles:
            ops_of_role = [index for index, op in enumerate(problem.ops) if op.role == role]
            line = Text(f"{f'{iteration} {role}':{margin}} ")
            line.append_text(_draw_row(problem, schedule, ops_of_role, iteration * schedule.ii, cycles, columns))
            line.rstrip()
            lines.append(line)
    return Group(*lines)


def _draw_row(problem: Problem, schedule: Schedule, ops: Sequence[int], after: int, cycles: int, columns: int) -> Text:
    """Return the line of one role in one iteration, with a statement's letter, `+` for several, or `─` in each
    column."""
    holders: list[list[int]] = [[] for _ in range(columns)]
    flying: list[int | None] = [None] * columns
    for op in ops:
        start = schedule.start[op] + after
        for column in _list_columns(start, start + problem.ops[op].latency, cycles, columns):
            flying[column] = op
        for column in _list_columns(*_find_held_cycles(problem.ops[op], start), cycles, columns):
            holders[column].append(op)
    row = Text()
    for held, on_its_way in zip(holders, flying, strict=True):
        shown = held[0] if held else on_its_way
        if shown is None:
            row.append(" ")
            continue
        sign = "+" if len(held) > 1 else get_letter(shown) if held else IN_FLIGHT
        row.append(sign, get_stage_style(schedule.stage[shown]))
    return row


def _find_held_cycles(op: Op, start: int) -> tuple[int, int]:
    """Return the cycles from a statement's issue until its last slot is released, as first and end."""
    return start, start + max([op.issue, 1, *(use.offset + use.cycles for use in op.uses)])


def _list_columns(first: int, end: int, cycles: int, columns: int) -> range:
    """Return the columns of the chart that the cycles from `first` until before `end` fall into."""
    return range(min(first // cycles, columns), min(-(-end // cycles), columns))
