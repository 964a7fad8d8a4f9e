"""Guesses the intended word of a misspelling. Words that only share letters are no match."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
"""The largest number of typing errors in a word."""


def nearest_word(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate within one typing error per three letters of `name`, or that it abbreviates; else None.

    Case is ignored.
    """
    lowered = {candidate.lower(): candidate for candidate in candidates}
    word = name.lower()
    most = min(max(len(word) // 3, 1 if len(word) > 2 else 0), _MOST)
    slips = {other: edit_distance(word, other) for other in lowered if abs(len(other) - len(word)) <= most}
    found = min(slips, key=lambda candidate: slips[candidate], default=None)
    if found is not None and slips[found] <= most:
        return lowered[found]
    return next((lowered[candidate] for candidate in lowered if _is_abbreviation(word, candidate)), None)


def _is_abbreviation(word: str, candidate: str) -> bool:
    """Return whether each part between underscores begins the candidate's part, as trans_b does transpose_b."""
    short, whole = word.split("_"), candidate.split("_")
    return len(short) == len(whole) > 1 and all(a and b.startswith(a) for a, b in zip(short, whole, strict=True))


def edit_distance(left: str, right: str) -> int:
    """Return the least number of letters to insert, delete, replace or swap with a neighbour, from left to right."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, last = row, before
        row = [i]
        for j, b in enumerate(right, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1]
