"""The outcome of a trial: what is known of a variant after compiling, and perhaps measuring it."""

from __future__ import annotations

import json

from tilec.support import readers, schema
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refusal` is the reason why a variant cannot be built; then nothing else is set. Otherwise: the cycles predicted
    for the built kernel, by the levels of its loops and by their schedules; the solved intervals; registers and spilled
    bytes per thread. `milliseconds` is the median of the launches on `gpu`, if measured."""

    refusal: str = ""
    by_levels: int = 0
    by_schedule: int = 0
    intervals: tuple[int, ...] = ()
    registers: int = 0
    spilled_bytes: int = 0
    milliseconds: float | None = None
    gpu: str = ""

    @property
    def cycles(self) -> int:
        """Return the larger of the cycles predicted by the levels of memory and by the schedules."""
        return max(self.by_levels, self.by_schedule)

    def cost(self, gpu: str) -> float | None:
        """Return the milliseconds, on whichever GPU, or the cycles if `gpu` is ""; None if refused or not measured."""
        if self.refusal:
            return None
        return self.milliseconds if gpu else float(self.cycles)

    def rank(self, gpu: str) -> tuple[bool, float]:
        """Return a sort key, best first, for variants that can be built; unmeasured ones that spill come last.

        No model has the cost of spilling.
        """
        cost = self.cost(gpu)
        assert cost is not None, "only what can be built has a rank"
        return not gpu and self.spilled_bytes > 0, cost

    def holds(self, gpu: str) -> bool:
        """Return whether the outcome needs no further trial for that GPU: refused, measured there, or no GPU."""
        return bool(self.refusal) or not gpu or (self.gpu == gpu and self.milliseconds is not None)


def outcome_to_json(outcome: Outcome) -> str:
    return json.dumps(schema.to_plain(outcome))


def outcome_from_json(text: str) -> Outcome:
    """Return the outcome in a JSON text; raise ValueError for another form."""
    return schema.read_record(Outcome, readers.parse_json(text), "outcome")
