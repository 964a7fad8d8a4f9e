"""Shell completion of options and arguments whose values are known words, one or several with commas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

WordCompleter = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_one(words: Callable[[], Iterable[str]]) -> WordCompleter:
    return lambda _context, _parameter, begun: [word for word in words() if word.startswith(begun)]


def complete_several(words: Callable[[], Iterable[str]]) -> WordCompleter:
    """Complete the last word of a list such as `sm_80,sm_9` with words that the list lacks."""

    def propose_words(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        before, comma, last = begun.rpartition(",")
        present = before.split(",")
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last) and word not in present]

    return propose_words


def list_codes() -> Iterable[str]:
    """Return the codes of errors and warnings."""
    from tilec.driver.explanations import EXPLANATIONS

    return sorted(EXPLANATIONS)
