"""The budget of a search: solver work, which is the same on every machine, and seconds, for interactive use."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

WORK_PER_EFFORT = 1_000_000
"""Work is counted in millionths of CP-SAT's deterministic time. One unit of deterministic time takes one to five
seconds."""

WORK_FOR_ANSWERS = 1_000_000
"""Work that heuristics may spend beyond an exhausted budget, together, so that every problem still gets an answer."""


class Budget:
    """The work and time that a search may spend. `work` is shared by all solver runs (None: unlimited). A run begins
    while less than `work` is spent, and then gets all the effort it asks for. So a search that stays within its budget
    gives the same result as one without a limit. Results depend on the clock only where `seconds_left` is finite.
    `tried` is called with each interval before it is tried."""

    def __init__(
        self,
        work: int | None = None,
        seconds_left: Callable[[], float] = lambda: inf,
        tried: Callable[[int], None] = lambda interval: None,
    ) -> None:
        self.seconds_left = seconds_left
        self.tried = tried
        self._work = work
        # A list, so that all budgets that share the work share the count.
        self._spent = [0]

    @property
    def spent(self) -> int:
        return self._spent[0]

    @property
    def left(self) -> int | None:
        """Return the solver work left, at least 0; None if it is unlimited."""
        return None if self._work is None else max(0, self._work - self.spent)

    @property
    def balance(self) -> int | None:
        """Return the work left, negative down to −`WORK_FOR_ANSWERS`, where heuristics stop; None if unlimited.

        Answers depend on this number.
        """
        return None if self._work is None else max(-WORK_FOR_ANSWERS, self._work - self.spent)

    @property
    def is_spent(self) -> bool:
        """Return whether no solver work is left."""
        return self.left == 0

    @property
    def is_over(self) -> bool:
        """Return whether no work or no time is left: then the search ends with the best answer so far."""
        return self.is_spent or self.seconds_left() <= 0

    def spend(self, work: int) -> None:
        self._spent[0] += work

    def split_third(self) -> Budget:
        """Return a budget with the same shared work and a third of the time left, so that later steps have time too."""
        rest = self.seconds_left() * 2 / 3
        part = Budget(self._work, self.seconds_left if rest == inf else lambda: self.seconds_left() - rest)
        part._spent = self._spent
        return part

    def reserve_for_answer(self) -> Budget:
        """Return a budget, with work beyond this one's end, for heuristics that answer an unfinished search.

        The caller charges the work to this budget.
        """
        balance = self.balance
        return Budget(None if balance is None else balance + WORK_FOR_ANSWERS, self.seconds_left)

    def without_work_limit(self) -> Budget:
        """Return a budget of the same time and unlimited work; the caller charges the work to this budget."""
        return Budget(None, self.seconds_left)
