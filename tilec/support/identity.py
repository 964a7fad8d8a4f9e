"""Keys by identity: for tables about statements, in which two that are equal are still two.

A plain `id` is valid only while its value lives; then another value may get the same number. An `IdentityKey` keeps its
value alive.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class IdentityKey(Generic[T_co]):
    """Equals another key if both are `of` the very same object; for dictionaries and sets."""

    __slots__ = ("of",)

    def __init__(self, of: T_co) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)

    def __repr__(self) -> str:
        return f"Same({self.of!r})"
