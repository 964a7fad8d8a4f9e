"""Answers kept by identity: of the very value that was asked about, and of no more than there is room for."""

from __future__ import annotations

from tilec.support.identity import cache_by_identity


def test_an_answer_is_of_the_value_asked_about_and_not_of_an_equal_one() -> None:
    asked: list[tuple[int, ...]] = []

    @cache_by_identity(8)
    def itself(value: tuple[int, ...], more: bool = False) -> tuple[int, ...]:
        asked.append(value)
        return value

    one, other = (tuple(range(2)) for _ in range(2))
    assert itself(one) is one and itself(other) is other and itself(one) is one
    assert len(asked) == 2
    assert itself(one, True) is one and itself(one, more=True) is one
    assert len(asked) == 4


def test_old_answers_make_room() -> None:
    asked: list[object] = []

    @cache_by_identity(4)
    def known(value: tuple[int]) -> int:
        asked.append(value)
        return value[0]

    values = [(number,) for number in range(10)]
    for value in values:
        assert known(value) == value[0]
    assert known(values[-1]) == 9 and len(asked) == 10
    assert known(values[0]) == 0 and len(asked) == 11
