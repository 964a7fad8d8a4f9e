"""The clock of a machine by how busy its tensor cores are: power that they take lowers it."""

from __future__ import annotations

from tilec.support.records import dataclass
from tilec.target.table import Target

NO_USE, LIGHT_USE = 0.02, 0.45
"""The fractions of the time for which tensor cores may be busy with the clock of a kernel without products, and with
that of a kernel with few. Kernels profiled on an H200 (benchmarks/results/h200-2026-11-26/profiles.json) run at 1.97
GHz with 0 % of it, at 1.79 to 1.83 with 3 to 50 %, at 1.68 with 65 %, at 1.60 with 98 %."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Clocks in MHz. Cycles of the target's file are of `nominal`; the others are what a board holds with tensor cores
    that are always busy (`tensor`), busy for up to half of the time (`light`), and idle (`free`); 0 where that is
    unknown."""

    nominal: int
    tensor: int
    light: int = 0
    free: int = 0

    def under_load(self, tensor_share: float) -> int:
        """Return the clock with tensor cores busy for this fraction of the time. The clock of a calibrated file is
        already the one under load."""
        if self.nominal <= self.tensor:
            return self.nominal
        if not (self.light and self.free):
            return round(self.nominal - (self.nominal - self.tensor) * tensor_share)
        if tensor_share < NO_USE:
            return self.free
        beyond = max(tensor_share - LIGHT_USE, 0) / (1 - LIGHT_USE)
        return round(self.light - (self.light - self.tensor) * beyond)


def read_clock(target: Target) -> Clock:
    """Return the clocks that a target's file gives."""
    limits = {limit.name: limit.value for limit in target.limits}
    names = ("light_clock_mhz", "free_clock_mhz")
    return Clock(limits["clock_mhz"], limits["tensor_clock_mhz"], *(limits.get(name, 0) for name in names))
