"""A schedule as data. It may come from the solver, a file or a person; only `verify` decides whether it holds."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Status = Literal["optimal", "feasible", "serial", "given"]
"""`optimal`: no smaller II exists. `feasible`: one may. `serial`: one op after the other, as was asked for, so that no
search was made. `given`: by a person or a file."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`start[i]` is the cycle at which op i of iteration 0 issues; iteration k issues it k·II later. `order` lists the
    op ids as they issue within one steady-state interval, by start mod II. `depth[r]` is the number of versions of
    ring r. `role[i]` is the role that runs op i, for the ops of a problem that names candidates; else empty."""

    ii: int
    start: tuple[int, ...]
    order: tuple[int, ...]
    depth: tuple[int, ...]
    status: Status
    role: tuple[int | None, ...] = ()

    @property
    def stage(self) -> tuple[int, ...]:
        """The interval in which each op issues, relative to its iteration's first."""
        return tuple(s // self.ii for s in self.start)
