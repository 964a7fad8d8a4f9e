"""How much a search may take: work of the solver, which is the same everywhere, and seconds, for who cannot wait."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

WORK_PER_EFFORT = 1_000_000
"""Work is counted in millionths of CP-SAT's deterministic time, of which one unit is one to five seconds here."""

WORK_FOR_ANSWERS = 1_000_000
"""What heuristics may take beyond a budget, for the answers of all that is asked where it has ended."""


def no_deadline() -> float:
    """Seconds left, for those who wait for an answer however long it takes."""
    return inf


class Budget:
    """`work` is for all runs of the solver together (None: any amount). A run begins while less than that is spent, and
    then has all the effort that it asks for. So a search that took less than there was is the same as one without a
    limit, whoever searched before. Answers depend on the clock only where `seconds_left` is finite. Who waits is told
    each interval that is `tried`."""

    def __init__(
        self,
        work: int | None = None,
        seconds_left: Callable[[], float] = no_deadline,
        tried: Callable[[int], None] = lambda interval: None,
    ) -> None:
        self.seconds_left = seconds_left
        self.tried = tried
        self._work = work
        # One count for all that share the work.
        self._spent = [0]

    @property
    def spent(self) -> int:
        return self._spent[0]

    @property
    def left(self) -> int | None:
        """Work that is left, None for any amount; of what is all spent, 0."""
        return None if self._work is None else max(0, self._work - self.spent)

    @property
    def balance(self) -> int | None:
        """The same, counting on below 0 down to where heuristics get nothing more: what answers depend on."""
        return None if self._work is None else max(-WORK_FOR_ANSWERS, self._work - self.spent)

    @property
    def is_spent(self) -> bool:
        """Whether the work is."""
        return self.left == 0

    @property
    def is_over(self) -> bool:
        """Whether there is no work or no time left: then the search ends with the best that it knows."""
        return self.is_spent or self.seconds_left() <= 0

    def spend(self, work: int) -> None:
        self._spent[0] += work

    def third(self) -> Budget:
        """The same work, and a third of the time that is left, where that is limited: there is always some for what
        follows."""
        rest = self.seconds_left() * 2 / 3
        part = Budget(self._work, self.seconds_left if rest == inf else lambda: self.seconds_left() - rest)
        part._spent = self._spent
        return part

    def for_answer(self) -> Budget:
        """What heuristics may still take for the answer of a search that ends here. Who takes one spends what it
        took."""
        balance = self.balance
        return Budget(None if balance is None else balance + WORK_FOR_ANSWERS, self.seconds_left)

    def separate(self) -> Budget:
        """As much time, and any amount of work, for what has to be found: who takes one spends what it took."""
        return Budget(None, self.seconds_left)
