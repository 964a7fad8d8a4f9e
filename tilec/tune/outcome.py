"""What is known of a variant once it has been compiled, and perhaps measured."""

from __future__ import annotations

import json

from tilec.support import readers, schema
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refusal` says why a variant cannot be built; of such a one nothing else is known. Else the cycles that the model
    predicts of the kernel as it was built, by the levels of its loops and by their schedules; the solved intervals;
    registers of a thread and bytes that it spills. `milliseconds` is the median of the launches on `gpu`, where it was
    measured."""

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
        """The larger of both predictions: what the levels of memory allow, and what the schedules do."""
        return max(self.by_levels, self.by_schedule)

    def cost(self, gpu: str) -> float | None:
        """The smaller the better: milliseconds on that GPU, or else (no `gpu`) cycles. None if it cannot be built."""
        if self.refusal:
            return None
        return self.milliseconds if gpu else float(self.cycles)

    def rank(self, gpu: str) -> tuple[bool, float]:
        """The order of variants that can be built. What spilled registers cost is in no model: without a measurement,
        variants that spill come behind those that do not."""
        cost = self.cost(gpu)
        assert cost is not None, "only what can be built has a rank"
        return not gpu and self.spilled_bytes > 0, cost

    def holds(self, gpu: str) -> bool:
        """Whether this is all that there is to know on that GPU."""
        return bool(self.refusal) or not gpu or (self.gpu == gpu and self.milliseconds is not None)


def to_json(outcome: Outcome) -> str:
    return json.dumps(schema.plain(outcome))


def from_json(text: str) -> Outcome:
    """Raises `ValueError` where the text is of another form."""
    return schema.record(Outcome, readers.json_value(text), "outcome")
