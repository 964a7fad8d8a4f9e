"""A value as itself, not as one that equals another: for tables about statements, of which two that read alike are two.

`id` would do for as long as the value lives; then another one may have its number. A `Same` keeps what it is about.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Same(Generic[T_co]):
    """Equals another one if both are `of` the very same object; the key of a dictionary, or a member of a set."""

    __slots__ = ("of",)

    def __init__(self, of: T_co) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)

    def __repr__(self) -> str:
        return f"Same({self.of!r})"
