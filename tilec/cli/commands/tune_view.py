"""The progress of a search: a bar and the best trials on a terminal, and the final table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tilec.cli.console import make_console
from tilec.report.tables import create_table
from tilec.support.display import show_share
from tilec.tune.knobs import OPTION_PREFIX

if TYPE_CHECKING:
    from rich.table import Table

    from tilec.tune.outcome import Outcome
    from tilec.tune.search import SearchResult
    from tilec.tune.space import Point, Value

MAX_ROWS = 10


class SearchWatcher:
    """Collects the progress of a search; `live` shows it on a terminal."""

    def __init__(self, gpu: str, clock_mhz: int, live: Live | None) -> None:
        self.gpu, self.clock_mhz, self.live = gpu, clock_mhz, live
        self.trials: list[tuple[Point, Outcome]] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns)
        self.bars = {name: self.progress.add_task(name, total=None, visible=False) for name in ("predicting", "trying")}

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None:
        """Remember a trial for the table of the best, unless it could not be built."""
        if not outcome.refusal:
            self.trials.append((point, outcome))

    def show_progress(self, phase: str, done: int, total: int) -> None:
        """Update a phase's progress bar, and on a terminal draw it with the best trials so far."""
        self.progress.update(self.bars[phase], completed=done, total=total, visible=True)
        if self.live is not None:
            built = sorted(self.trials, key=lambda trial: trial[1].rank(self.gpu))
            shown = [make_best_table(built, self.gpu, self.clock_mhz)] if built else []
            self.live.update(Group(self.progress, *shown))


@contextmanager
def watch_search(gpu: str, clock_mhz: int) -> Iterator[SearchWatcher]:
    """Yield a watcher of a search, which draws live if standard error is a terminal."""
    out = make_console(stderr=True)
    if not out.is_terminal:
        yield SearchWatcher(gpu, clock_mhz, None)
        return
    with Live(console=out, transient=True) as live:
        yield SearchWatcher(gpu, clock_mhz, live)


def format_microseconds(outcome: Outcome, gpu: str, clock_mhz: int) -> str:
    """Return the time of a built trial as text: measured on `gpu`, or predicted if there is none."""
    cost = outcome.cost(gpu)
    assert cost is not None, "what cannot be built takes no time"
    return f"{cost * 1000 if gpu else cost / clock_mhz:,.1f} µs"


def make_best_table(
    built: Sequence[tuple[Point, Outcome]], gpu: str, clock_mhz: int, baseline: Point | None = None
) -> Table:
    """Return a table of the baseline, if given, and the ten best trials, each with its changes to the baseline.

    Trials that differ only in options which change nothing share a row.
    """
    title = "best trials" if gpu else "best trials, modelled"
    measuring = ("measured",) if gpu else ()
    table = create_table(title, *measuring, "predicted", "II", "registers", "spilled", "<what it changes")
    before = dict(baseline or ())
    rows = _merge_rows(built, baseline)
    for place, (points, outcome) in enumerate(rows):
        is_baseline = baseline is not None and points[0] == baseline
        if place >= MAX_ROWS + (baseline is not None) and not is_baseline:
            continue
        changes = _describe_changes(points[0], {}) if is_baseline else _describe_changes(points[0], before)
        words = Text(f"the file as written{': ' if changes else ''}{changes}" if is_baseline else changes or "nothing")
        for same in points[1:]:
            words.append(f"\nthe same with {_describe_changes(same, dict(points[0])) or 'the file as written'}", "dim")
        measured = (format_microseconds(outcome, gpu, clock_mhz),) if gpu else ()
        solved = ", ".join(f"{ii:,}" for ii in outcome.intervals) or "–"
        numbers = (f"{outcome.cycles / clock_mhz:,.1f} µs", solved, f"{outcome.registers}", f"{outcome.spilled_bytes}")
        table.add_row(*measured, *numbers, words, style="bold" if is_baseline else "")
    return table


def _merge_rows(built: Sequence[tuple[Point, Outcome]], baseline: Point | None) -> list[tuple[list[Point], Outcome]]:
    """Return the table's rows, the baseline's first; points with equal constants and equal outcome share a row.

    Measured times may differ.
    """
    rows: dict[tuple[object, ...], tuple[list[Point], Outcome]] = {}
    for point, outcome in sorted(built, key=lambda trial: trial[0] != baseline):
        constants = tuple((name, value) for name, value in point if not name.startswith(OPTION_PREFIX))
        known = replace(outcome, milliseconds=None, gpu="")
        rows.setdefault((constants, known), ([], outcome))[0].append(point)
    return list(rows.values())


def _describe_changes(point: Point, before: Mapping[str, Value]) -> str:
    """Return the constants and options of a point that differ from `before`, as `name=value, …`."""
    return ", ".join(f"{name}={value}" for name, value in point if before.get(name) != value)


def compare_with_baseline(found: SearchResult, best: Outcome, gpu: str, clock_mhz: int) -> str:
    """Return a sentence that compares the best variant's time with that of the file as written."""
    written = dict(found.trials)[found.baseline]
    if written.refusal:
        return f"the file as written cannot be built: {written.refusal}"
    before, after = written.cost(gpu), best.cost(gpu)
    assert before is not None and after is not None, "both could be built"
    time = f"the file as written: {format_microseconds(written, gpu, clock_mhz)}"
    if written == best:
        return f"{time}; no variant is better"
    spilled = "; it spills registers" if written.spilled_bytes and not best.spilled_bytes else ""
    return f"{time}{spilled}; the best takes {show_share(1 - after / before)} less"


def list_refusals(found: SearchResult) -> Iterator[str]:
    """Yield the three most common reasons why variants could not be built, each with its count."""
    reasons = {rejection.point: rejection.reason for rejection in found.ranking.rejected}
    reasons |= {point: outcome.refusal for point, outcome in found.trials if outcome.refusal}
    for reason, count in Counter(reasons.values()).most_common(3):
        yield f"{count} variants: {reason}"
