"""A schedule as data. It may come from the solver, a file or a person; only `verify` decides whether it holds."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Status = Literal["optimal", "feasible", "serial", "given"]
"""`optimal`: no smaller II exists. `feasible`: one may. `serial`: one op after the other, as was asked for, so that no
search was made. `given`: by a person or a file."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the statements of one iteration issue, and how many versions of its buffers there are. All times are cycles.

    `ii` is the initiation interval, at least 1. `start[i]` is the cycle, from 0 on, at which op i of iteration 0
    issues; iteration k issues it k·II later. `order` lists all op ids as they issue within one steady-state interval,
    by start mod II. `depth[r]` is the number of versions of ring r, at least 1. `role[i]` is the role that runs op i,
    for the ops of a problem that names candidates (None: an op that names none); else empty.

    `start` and `order` are as long as the problem's ops, `depth` as its rings. Nothing is checked here: `verify` says
    what a schedule breaks. The form is that of modulo scheduling (Rau, "Iterative Modulo Scheduling", MICRO-27, 1994).
    """

    ii: int
    start: tuple[int, ...]
    order: tuple[int, ...]
    depth: tuple[int, ...]
    status: Status
    role: tuple[int | None, ...] = ()

    @property
    def stage(self) -> tuple[int, ...]:
        """The interval in which each op issues, relative to its iteration's first: start // II (Rau 1994)."""
        return tuple(s // self.ii for s in self.start)
