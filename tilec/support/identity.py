"""Keys and caches by identity: for tables about statements, in which two that are equal are still two.

A plain `id` is valid only while its value lives; then another value may get the same number. An `IdentityKey` keeps its
value alive.

Passes ask the same of the same statement again and again. `functools.lru_cache` does not distinguish equal values; but
a caller that asks about a loop may look for that very loop in the answer, by `is`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def cache_by_identity(most: int) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """Return a decorator that caches about the last `most` results of a function by its arguments' identity.

    Arguments are frozen values, given by position, and are kept alive with the results.
    """

    def decorate_function(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        """Return the function with a cache of its results."""
        # In order of insertion. The arguments are kept alive, so that no other object gets their identity.
        kept: dict[tuple[int, ...], tuple[object, Answer]] = {}

        @wraps(function)
        def call_cached(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            """Return the kept result for these very arguments, or compute and keep it; keywords bypass the cache."""
            if kwargs:
                return function(*args, **kwargs)
            key = tuple(map(id, args))
            known = kept.get(key)
            if known is not None:
                return known[1]
            answer = function(*args, **kwargs)
            if len(kept) >= most:
                for old in list(kept)[: most // 2]:
                    kept.pop(old, None)
            kept[key] = args, answer
            return answer

        return call_cached

    return decorate_function


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
