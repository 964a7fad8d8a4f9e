"""A profile of a GPU beside what the simulation says, metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tilec.simulate.counters import Counter
from tilec.simulate.profile import Launch
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A metric that both know; `measured` is the mean of the launches that have it."""

    name: str
    unit: str
    measured: float
    predicted: float

    @property
    def ratio(self) -> float | None:
        """Predicted by measured; None of nothing."""
        return self.predicted / self.measured if self.measured else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` in the order of the predictions; `unmatched` are metrics of the profile that nothing predicts."""

    launches: int
    rows: tuple[Row, ...]
    unmatched: tuple[str, ...]


def of_kernel(launches: Sequence[Launch], entry: str) -> tuple[Launch, ...]:
    """Those of the entry; ncu shows a mangled name or its demangled signature."""
    exact = tuple(launch for launch in launches if launch.kernel.partition("(")[0] == entry)
    return exact or tuple(launch for launch in launches if entry in launch.kernel)


def compare(launches: Sequence[Launch], predicted: Sequence[Counter]) -> Comparison:
    """The launches of one kernel beside its counters."""
    rows = []
    for counter in predicted:
        measured = [launch.metrics[counter.name] for launch in launches if counter.name in launch.metrics]
        if measured:
            rows.append(Row(counter.name, counter.unit, fmean(measured), counter.value))
    known = {counter.name for counter in predicted}
    others = dict.fromkeys(name for launch in launches for name in launch.metrics if name not in known)
    return Comparison(len(launches), tuple(rows), tuple(others))
