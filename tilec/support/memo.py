"""Answers kept for the very values that were asked about.

Passes ask the same of the same statement again and again, and a frozen value never answers otherwise. Values that are
equal are not told from one another by `functools.lru_cache`; but who asks about a loop may look for that loop in the
answer, by `is`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def by_identity(most: int) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """Keeps the last `most` answers of a function of frozen values, given by position, with what they are about."""

    def decorated(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        # The values are kept too, so that nothing else gets their identity. In the order in which they came.
        kept: dict[tuple[int, ...], tuple[object, Answer]] = {}

        @wraps(function)
        def asked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
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

        return asked

    return decorated
