"""Compares a profile measured on a GPU with the simulation, metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tilec.simulate.counters import Counter
from tilec.simulate.profile import ProfiledLaunch
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric that both have; `measured` is the mean over the launches that report it."""

    name: str
    unit: str
    measured: float
    predicted: float

    @property
    def ratio(self) -> float | None:
        """Return predicted / measured; None if 0 was measured."""
        return self.predicted / self.measured if self.measured else None


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Rows in the order of the predictions; `unmatched` are metrics of the profile that the simulation does not
    predict."""

    launches: int
    rows: tuple[MetricRow, ...]
    unmatched: tuple[str, ...]


def select_launches(launches: Sequence[ProfiledLaunch], entry: str) -> tuple[ProfiledLaunch, ...]:
    """Return the launches of the entry, which ncu names mangled or by its demangled signature."""
    exact = tuple(launch for launch in launches if launch.kernel.partition("(")[0] == entry)
    return exact or tuple(launch for launch in launches if entry in launch.kernel)


def compare_profile(launches: Sequence[ProfiledLaunch], predicted: Sequence[Counter]) -> ProfileComparison:
    rows = []
    for counter in predicted:
        measured = [launch.metrics[counter.name] for launch in launches if counter.name in launch.metrics]
        if measured:
            rows.append(MetricRow(counter.name, counter.unit, fmean(measured), counter.value))
    known = {counter.name for counter in predicted}
    others = dict.fromkeys(name for launch in launches for name in launch.metrics if name not in known)
    return ProfileComparison(len(launches), tuple(rows), tuple(others))
