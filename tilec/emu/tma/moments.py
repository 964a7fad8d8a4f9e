"""The times at which asynchronous operations take effect, anywhere between their issue and the wait for them.

Without an adversary each effect comes as late as the kernel's waits allow, which exposes a source that is reused too
early. An adversary draws for each: at once, as late as possible, or at some step in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class AsyncEffect:
    """An effect that happens once: an asynchronous operation reads its sources or writes its destination."""

    __slots__ = ("_act", "is_done")

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_done = False

    def do(self) -> None:
        """Run the effect, unless it has run before."""
        if not self.is_done:
            self.is_done = True
            self._act()


class EffectScheduler:
    """Schedules the effects of asynchronous operations in one launch."""

    def __init__(self, generator: random.Random | None) -> None:
        self._generator = generator
        self._drifting: list[AsyncEffect] = []

    def schedule_effects(self, *effects: AsyncEffect) -> None:
        """Run each effect at once, queue it, or leave it to the wait, as an adversary draws; without one leave all to
        the wait."""
        if self._generator is None:
            return
        for effect in effects:
            choice = self._generator.randrange(3)
            if choice == 0:
                effect.do()
            elif choice == 1:
                self._drifting.append(effect)

    def run_some_effects(self) -> None:
        """Run up to two of the queued effects, drawn by chance; do nothing without an adversary."""
        if self._generator is None or not self._drifting:
            return
        self._drifting = [effect for effect in self._drifting if not effect.is_done]
        for _ in range(self._generator.randrange(3)):
            if self._drifting:
                self._drifting.pop(self._generator.randrange(len(self._drifting))).do()

    def drop_effects(self) -> None:
        """Forget the queued effects of a cluster that has ended; they were waited for or reported."""
        self._drifting = []
