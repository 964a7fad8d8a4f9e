"""Reads profiles that `ncu --csv` writes, and compares them with the simulation.

Two forms: one row for each metric (the default, and `--page details`), and one for each launch with a column for each
metric and units in the row below the names (`--page raw`). Lines before the table that begin with == are messages of
the tool. Numbers are in the locale of the machine.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from tilec.simulate.counters import Counter
from tilec.support.records import dataclass

_TIME_SCALES = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
}  # fmt: skip
"""Time units in nanoseconds."""
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_COUNTED = ("byte", "inst", "sector", "request", "cycle", "warp", "block", "thread", "hz")


class ProfileError(ValueError):
    """The text is no profile; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """One launch of a kernel: its metrics by name, times in nanoseconds, amounts without a prefix."""

    kernel: str
    metrics: Mapping[str, float]


def read_profile(text: str) -> tuple[ProfiledLaunch, ...]:
    """Return the launches of a profile by `ncu --csv`, in order; raise `ProfileError` if there is no table or
    number."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    begin = next((at for at, line in enumerate(lines) if "Kernel Name" in line), None)
    if begin is None:
        raise ProfileError("the header row with the column Kernel Name is missing")
    header, *rows = csv.reader(lines[begin:])
    made = tuple(_read_metric_rows(header, rows) if "Metric Name" in header else _read_launch_rows(header, rows))
    if not any(launch.metrics for launch in made):
        raise ProfileError("it has no metric with a number")
    return made


def _read_metric_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[ProfiledLaunch]:
    """Yield the launches of a table with a row for each metric; skip rows of other length; `ProfileError` without a
    column."""
    for column in ("Metric Unit", "Metric Value"):
        if column not in header:
            raise ProfileError(f"it has no column {column}")
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if len(row) != len(header):
            continue  # a message among the rows
        cells = dict(zip(header, row, strict=True))
        metrics = found.setdefault((cells.get("ID", ""), cells["Kernel Name"]), {})
        _add_metric(metrics, cells["Metric Name"], cells["Metric Value"], cells["Metric Unit"])
    for (_, kernel), metrics in found.items():
        yield ProfiledLaunch(kernel, metrics)


def _read_launch_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[ProfiledLaunch]:
    """Yield a table's launches, one a row: columns with `__` in their names are metrics; rows of another length are
    skipped."""
    rows = [row for row in rows if len(row) == len(header)]
    at = header.index("Kernel Name")
    units = rows.pop(0) if rows and not rows[0][at] else [""] * len(header)
    for row in rows:
        metrics: dict[str, float] = {}
        for name, value, unit in zip(header, row, units, strict=True):
            if "__" in name:
                _add_metric(metrics, name, value, unit)
        yield ProfiledLaunch(row[at], metrics)


def _add_metric(metrics: dict[str, float], name: str, value: str, unit: str) -> None:
    """Set a metric in `metrics`, scaled to the unit without a prefix, if its value is a number."""
    number = _parse_number(value)
    if number is not None:
        metrics[name] = number * _find_unit_scale(unit)


def _parse_number(text: str) -> float | None:
    """Return the number that a text spells in any locale, 1234.5, 1,234.5 or 1234,5; None if it is no number."""
    text = text.strip().replace("\u202f", "").replace("\xa0", "").replace(" ", "")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    elif re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+,\d+", text):
        text = text.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"[+-]?\d+,\d+", text):
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


def _find_unit_scale(unit: str) -> float:
    """Return the factor of a unit: nanoseconds in a time unit, a prefix such as K, or else 1."""
    if unit in _TIME_SCALES:
        return _TIME_SCALES[unit]
    is_counted = unit[1:].startswith(_COUNTED)
    return _PREFIXES.get(unit[:1], 1.0) if is_counted else 1.0


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
    """Rows in the order of the predictions; `unmatched` are the profile's metrics that have no prediction."""

    launches: int
    rows: tuple[MetricRow, ...]
    unmatched: tuple[str, ...]


def select_launches(launches: Sequence[ProfiledLaunch], entry: str) -> tuple[ProfiledLaunch, ...]:
    """Return the launches of a kernel named exactly, or if there are none, those whose name contains the entry's. Ncu
    names a kernel mangled or by its demangled signature."""
    exact = tuple(launch for launch in launches if launch.kernel.partition("(")[0] == entry)
    return exact or tuple(launch for launch in launches if entry in launch.kernel)


def compare_profile(launches: Sequence[ProfiledLaunch], predicted: Sequence[Counter]) -> ProfileComparison:
    """Return each predicted metric that the launches report, with its mean over them, and the metrics without a
    prediction."""
    rows = []
    for counter in predicted:
        measured = [launch.metrics[counter.name] for launch in launches if counter.name in launch.metrics]
        if measured:
            rows.append(MetricRow(counter.name, counter.unit, fmean(measured), counter.value))
    known = {counter.name for counter in predicted}
    others = dict.fromkeys(name for launch in launches for name in launch.metrics if name not in known)
    return ProfileComparison(len(launches), tuple(rows), tuple(others))
