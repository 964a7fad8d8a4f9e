"""Names in tile IR: each stands for one thing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class UniqueNames:
    """Hands out each name once: `i`, then `i_1`, `i_2`."""

    taken: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    """The last number behind each name that was handed out: those below stay taken."""

    def take(self, name: str) -> str:
        candidate, count = name, self.counts.get(name, 0)
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        self.counts[name] = count
        return candidate
