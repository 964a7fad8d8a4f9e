"""When asynchronous operations act: the hardware may choose any moment between their issue and what is waited for.

Without an adversary each acts as late as the waits of the kernel allow, which makes it as wrong as can be for a kernel
that reuses a source too early. An adversary draws for each: at once, as late as it may, or at some turn in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Deed:
    """What an operation does once: read its sources, or write its destination."""

    __slots__ = ("_act", "is_done")

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_done = False

    def do(self) -> None:
        """Do it, unless it is done."""
        if not self.is_done:
            self.is_done = True
            self._act()


class Moments:
    """Chooses the moments of one launch."""

    def __init__(self, generator: random.Random | None) -> None:
        self._generator = generator
        self._drifting: list[Deed] = []

    def plan(self, *deeds: Deed) -> None:
        """Choose a moment for each deed of an operation that is issued now; they stay in their order."""
        if self._generator is None:
            return
        for deed in deeds:
            choice = self._generator.randrange(3)
            if choice == 0:
                deed.do()
            elif choice == 1:
                self._drifting.append(deed)

    def drift(self) -> None:
        """Time passes: some of what is under way may happen."""
        if self._generator is None or not self._drifting:
            return
        self._drifting = [deed for deed in self._drifting if not deed.is_done]
        for _ in range(self._generator.randrange(3)):
            if self._drifting:
                self._drifting.pop(self._generator.randrange(len(self._drifting))).do()

    def forget(self) -> None:
        """A cluster has ended; what it left behind was waited for or reported."""
        self._drifting = []
