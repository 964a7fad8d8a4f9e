"""How far a search is and what it has found: a bar and the best trials, on a terminal, and the table at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tilec.cli.console import console

if TYPE_CHECKING:
    from tilec.tune.outcome import Outcome
    from tilec.tune.search import Found
    from tilec.tune.space import Point

SHOWN = 10


class Watcher:
    """Keeps what there is to see; `live` shows it on a terminal."""

    def __init__(self, gpu: str, clock_mhz: int, live: Live | None) -> None:
        self.gpu, self.clock_mhz, self.live = gpu, clock_mhz, live
        self.trials: list[tuple[Point, Outcome]] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns)
        self.bars = {name: self.progress.add_task(name, total=None, visible=False) for name in ("predicting", "trying")}

    def predicting(self, done: int, total: int) -> None:
        self._moved("predicting", done, total)

    def trying(self, done: int, total: int) -> None:
        self._moved("trying", done, total)

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None:
        if not outcome.refusal:
            self.trials.append((point, outcome))

    def _moved(self, bar: str, done: int, total: int) -> None:
        self.progress.update(self.bars[bar], completed=done, total=total, visible=True)
        if self.live is not None:
            built = sorted(self.trials, key=lambda trial: trial[1].rank(self.gpu))
            shown = [best_table(built, self.gpu, self.clock_mhz)] if built else []
            self.live.update(Group(self.progress, *shown))


@contextmanager
def watched(gpu: str, clock_mhz: int) -> Iterator[Watcher]:
    """A watcher of a search, live where standard error is a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield Watcher(gpu, clock_mhz, None)
        return
    with Live(console=out, transient=True) as live:
        yield Watcher(gpu, clock_mhz, live)


def microseconds(outcome: Outcome, gpu: str, clock_mhz: int) -> str:
    cost = outcome.cost(gpu)
    assert cost is not None, "what cannot be built takes no time"
    return f"{cost * 1000 if gpu else cost / clock_mhz:,.1f} µs"


def best_table(
    built: Sequence[tuple[Point, Outcome]], gpu: str, clock_mhz: int, baseline: Point | None = None
) -> Table:
    """The best trials, the best first, and the baseline wherever it comes: measured time, what the model says, what was
    solved, and each knob."""
    table = Table(title=Text("best trials" if gpu else "best trials, modelled"), title_justify="left")
    headings = (*(("measured",) if gpu else ()), "by levels", "by schedule", "II", "registers", "spilled")
    for heading in headings:
        table.add_column(heading, justify="right")
    knobs = [name for name, _ in max((point for point, _ in built), key=len)]
    for name in knobs:
        table.add_column(Text(name), justify="right")
    shown = [trial for place, trial in enumerate(built) if place < SHOWN or trial[0] == baseline]
    for point, outcome in shown:
        modelled = (f"{cycles / clock_mhz:,.1f} µs" for cycles in (outcome.by_levels, outcome.by_schedule))
        solved = ", ".join(f"{ii:,}" for ii in outcome.intervals) or "–"
        measured = (microseconds(outcome, gpu, clock_mhz),) if gpu else ()
        built_as = (solved, str(outcome.registers), str(outcome.spilled_bytes))
        values = dict(point)
        words = [Text(str(values.get(name, "as written"))) for name in knobs]
        table.add_row(*measured, *modelled, *built_as, *words, style="bold" if point == baseline else "")
    return table


def about_baseline(found: Found, best: Outcome, gpu: str, clock_mhz: int) -> str:
    """How the best variant compares with the file as written."""
    written = dict(found.trials)[found.baseline]
    if written.refusal:
        return f"the file as written cannot be built: {written.refusal}"
    before, after = written.cost(gpu), best.cost(gpu)
    assert before is not None and after is not None, "both could be built"
    time = f"the file as written: {microseconds(written, gpu, clock_mhz)}"
    if written == best:
        return f"{time}; nothing that was tried is better"
    spilled = "; it spills registers" if written.spilled_bytes and not best.spilled_bytes else ""
    return f"{time}{spilled}; the best takes {1 - after / before:.0%} less"


def refused(found: Found) -> Iterator[str]:
    """Why variants could not be built, the commonest reasons first."""
    reasons = {rejection.point: rejection.reason for rejection in found.ranking.rejected}
    reasons |= {point: outcome.refusal for point, outcome in found.trials if outcome.refusal}
    for reason, count in Counter(reasons.values()).most_common(3):
        yield f"{count} refused: {reason}"
