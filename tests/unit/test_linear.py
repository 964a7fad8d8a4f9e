"""A ledger of what must be given back exactly once, told the paths of a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilec.frontend.sema.roles.linear_resources import Ledger, PathNote, Resource
from tilec.support.diagnostics import CompileError, ErrorCollector
from tilec.support.source import Span

ROLE = range(1)


def at(line: int) -> Span:
    return Span(line, 1, line, 2)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(ErrorCollector())


def take(ledger: Ledger, line: int) -> Resource:
    return ledger.take("the stage", at(line), ROLE)


def reported(ledger: Ledger) -> list[tuple[str, list[int]]]:
    """The codes so far, each with the lines of its labels, the primary one first."""
    return [
        (d.code, [label.span.line for label in (d.primary, *d.secondary) if label is not None])
        for d in ledger.mistakes.found.values()
    ]


def refused(does: Callable[[], None]) -> str:
    with pytest.raises(CompileError) as error:
        does()
    (found,) = error.value.diagnostics
    return found.code


def test_once_is_right(ledger: Ledger) -> None:
    with ledger.region(PathNote(at(9), "")):
        thing = take(ledger, 1)
        ledger.use(thing, at(2))
        ledger.release(thing, at(3), ROLE)
    assert reported(ledger) == [] and ledger.held() == []


def test_never(ledger: Ledger) -> None:
    with ledger.region(PathNote(at(9), "")):
        take(ledger, 1)
    assert reported(ledger) == [("missing-release", [1, 9])]


def test_twice_and_afterwards(ledger: Ledger) -> None:
    thing = take(ledger, 1)
    ledger.release(thing, at(2), ROLE)
    assert refused(lambda: ledger.release(thing, at(3), ROLE)) == "double-release"
    assert refused(lambda: ledger.use(thing, at(3))) == "use-after-release"


def test_by_another_role(ledger: Ledger) -> None:
    thing = take(ledger, 1)
    assert refused(lambda: ledger.release(thing, at(2), range(1, 2))) == "divergent-release"


def part(ledger: Ledger, then: Callable[[], None], otherwise: Callable[[], None], line: int = 5) -> None:
    with ledger.split_paths(at(line)) as paths:
        with paths.path("holds", at(line)):
            then()
        with paths.path("does not hold", at(line)):
            otherwise()


def nothing() -> None:
    pass


def test_on_both_paths(ledger: Ledger) -> None:
    with ledger.region(PathNote(at(9), "")):
        thing = take(ledger, 1)
        part(ledger, lambda: ledger.release(thing, at(6), ROLE), lambda: ledger.release(thing, at(7), ROLE))
        assert refused(lambda: ledger.release(thing, at(8), ROLE)) == "double-release"
    assert reported(ledger) == []


@pytest.mark.parametrize("first", [True, False])
def test_on_one_path(ledger: Ledger, first: bool) -> None:
    """The label of the path points at the condition, and says on which side of it."""
    with ledger.region(PathNote(at(9), "")):
        thing = take(ledger, 1)
        paths = [lambda: ledger.release(thing, at(6), ROLE), nothing]
        part(ledger, *(paths if first else paths[::-1]))
    assert reported(ledger) == [("missing-release", [1, 6, 5])]
    (found,) = ledger.mistakes.found.values()
    assert found.secondary[1].text == f"but not where this {'does not hold' if first else 'holds'}"


def test_paths_inside_paths(ledger: Ledger) -> None:
    with ledger.region(PathNote(at(9), "")):
        thing = take(ledger, 1)

        def back(line: int) -> Callable[[], None]:
            return lambda: ledger.release(thing, at(line), ROLE)

        part(ledger, lambda: part(ledger, back(6), back(7), line=4), back(8))
    assert reported(ledger) == []


def test_taken_on_a_path(ledger: Ledger) -> None:
    part(ledger, lambda: take(ledger, 6) and None, nothing)
    assert reported(ledger) == [("missing-release", [6, 5])]


def test_what_an_iteration_takes_it_gives_back(ledger: Ledger) -> None:
    with ledger.loop(PathNote(at(2), "")):
        thing = take(ledger, 3)
        ledger.release(thing, at(4), ROLE)
        take(ledger, 5)
    assert reported(ledger) == [("missing-release", [5, 2])]


def test_held_over_a_loop(ledger: Ledger) -> None:
    thing = take(ledger, 1)
    with ledger.loop(PathNote(at(2), "")):
        ledger.use(thing, at(3))
    ledger.release(thing, at(4), ROLE)
    assert reported(ledger) == []


def test_given_back_in_a_later_loop(ledger: Ledger) -> None:
    thing = take(ledger, 1)
    with ledger.loop(PathNote(at(2), "")):
        assert refused(lambda: ledger.release(thing, at(3), ROLE)) == "unbalanced-release"


def test_a_loop_left_with_it(ledger: Ledger) -> None:
    with ledger.loop(PathNote(at(2), "")):
        thing = take(ledger, 3)
        part(ledger, lambda: ledger.leave(at(6), "break"), lambda: ledger.release(thing, at(7), ROLE))
    assert reported(ledger) == [("missing-release", [3, 6])]


def test_a_loop_left_without_it(ledger: Ledger) -> None:
    """The path that has left meets the other one no more."""

    def out() -> None:
        ledger.release(thing, at(6), ROLE)
        ledger.leave(at(6), "break")

    outer = take(ledger, 1)
    with ledger.loop(PathNote(at(2), "")):
        thing = take(ledger, 3)
        part(ledger, out, lambda: ledger.release(thing, at(7), ROLE))
    assert ledger.held() == [outer] and not ledger.is_left
    assert reported(ledger) == []


def test_every_path_leaves(ledger: Ledger) -> None:
    with ledger.loop(PathNote(at(2), "")):
        part(ledger, lambda: ledger.leave(at(6), "break"), lambda: ledger.leave(at(7), "break"))
        assert ledger.is_left
    assert not ledger.is_left


def test_behind_another_mistake_nothing_is_said(ledger: Ledger) -> None:
    """That may have been the release."""
    with ledger.region(PathNote(at(9), "")):
        take(ledger, 1)
        ledger.mistakes.add(CompileError())
    assert reported(ledger) == []


def test_one_that_is_missed_is_missed_once(ledger: Ledger) -> None:
    with ledger.region(PathNote(at(9), "")), ledger.loop(PathNote(at(2), "")):
        thing = take(ledger, 3)
        part(ledger, lambda: ledger.release(thing, at(6), ROLE), nothing)
        part(ledger, lambda: ledger.release(thing, at(7), ROLE) if thing in ledger.held() else None, nothing)
    assert [code for code, _ in reported(ledger)] == ["missing-release"]
