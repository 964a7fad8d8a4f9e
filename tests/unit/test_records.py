"""Our quick dataclasses behave as the standard ones do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from tilec.support import records


def _classes(dataclass: Any) -> dict[str, Any]:
    @dataclass(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tag: str = field(default="", compare=False)
        parts: list[int] = field(default_factory=list, compare=False, repr=False)
        origin: ClassVar[int] = 0

        @property
        def sum(self) -> int:
            return self.x + self.y

    @dataclass(frozen=True, slots=True)
    class Double:
        n: int
        twice: int = field(init=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.n)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        span: int = 0

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        name: str

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(slots=True)
    class Counter:
        """Counts."""

        count: int = 0
        seen: list[int] = field(default_factory=list, compare=False)

    @dataclass(slots=True, eq=False)
    class Node:
        name: str
        below: list[Any] = field(default_factory=list, init=False)

        def __post_init__(self) -> None:
            self.below.append(self.name)

    return {c.__name__: c for c in (Point, Double, Base, Derived, Empty, Counter, Node)}


@pytest.fixture(params=["standard", "ours"])
def made(request: pytest.FixtureRequest) -> dict[str, Any]:
    return _classes(dataclasses.dataclass if request.param == "standard" else records.dataclass)


def test_fields_defaults_and_equality(made: dict[str, Any]) -> None:
    point = made["Point"]
    assert point(1) == point(1, 2) == point(x=1, tag="other")
    assert point(1) != point(2)
    assert point(1) != made["Empty"]()
    assert hash(point(1)) == hash(point(1, tag="other"))
    assert point(1).sum == 3
    assert point(1).parts is not point(1).parts
    assert made["Empty"]() == made["Empty"]()
    assert hash(made["Empty"]()) == hash(made["Empty"]())


def test_repr(made: dict[str, Any]) -> None:
    assert repr(made["Point"](1)).endswith("Point(x=1, y=2, tag='')")
    assert repr(made["Empty"]()).endswith("Empty()")


def test_nothing_can_be_changed(made: dict[str, Any]) -> None:
    point = made["Point"](1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises((AttributeError, TypeError)):
        point.other = 3
    assert not hasattr(point, "__dict__")


def test_what_is_not_frozen_can_be_changed(made: dict[str, Any]) -> None:
    counter = made["Counter"](1)
    counter.count += 1
    counter.seen.append(5)
    assert counter == made["Counter"](2) != made["Counter"](1)
    assert repr(counter).endswith("Counter(count=2, seen=[5])")
    assert dataclasses.replace(counter, count=7).seen is counter.seen
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)
    with pytest.raises(AttributeError):
        counter.other = 3
    del counter.count
    assert not hasattr(counter, "count")
    assert made["Counter"]().seen is not made["Counter"]().seen


def test_what_has_an_identity_is_compared_by_it(made: dict[str, Any]) -> None:
    one, other = made["Node"]("a"), made["Node"]("a")
    assert one.below == ["a"] and one != other and len({one, other, one}) == 2
    other.name = "b"
    assert copy.copy(other).name == "b"


def test_post_init_and_replace(made: dict[str, Any]) -> None:
    double = made["Double"](4)
    assert double.twice == 8
    assert dataclasses.replace(double, n=5).twice == 10
    assert dataclasses.replace(made["Point"](1, tag="t"), y=7) == made["Point"](1, 7)


def test_inheritance_with_keyword_fields(made: dict[str, Any]) -> None:
    derived = made["Derived"]("a", span=3)
    assert (derived.name, derived.span) == ("a", 3)
    assert isinstance(derived, made["Base"])
    assert [f.name for f in dataclasses.fields(derived)] == ["span", "name"]
    with pytest.raises(TypeError):
        made["Derived"]("a", 3)


def test_wrong_arguments_are_refused(made: dict[str, Any]) -> None:
    for arguments in ((), (1, 2, "", [], 5)):
        with pytest.raises(TypeError):
            made["Point"](*arguments)


def test_signature(made: dict[str, Any]) -> None:
    """As with the standard decorator, before the first instance as after it."""
    for cls in made.values():
        before = inspect.signature(cls)
        assert str(before) == str(inspect.signature(cls)) and "*args" not in str(before)
    assert str(inspect.signature(made["Derived"])) == "(name: 'str', *, span: 'int' = 0) -> None"
    assert str(inspect.signature(made["Point"])).endswith("parts: 'list[int]' = <factory>) -> None")


def test_match(made: dict[str, Any]) -> None:
    point = made["Point"]
    match point(1, 5):
        case point(1, y):
            assert y == 5
        case _:
            pytest.fail("no match")
    assert dataclasses.is_dataclass(point)
    assert point.__match_args__[:2] == ("x", "y")


def test_copies(made: dict[str, Any]) -> None:
    derived = made["Derived"]("a", span=3)
    assert copy.copy(derived) == derived
    assert copy.deepcopy(derived) == derived


@records.dataclass(frozen=True, slots=True)
class Pickled:
    a: int
    b: tuple[int, ...] = ()


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(Pickled(1, (2, 3)))) == Pickled(1, (2, 3))


def test_a_hash_that_is_known_is_no_part_of_the_value() -> None:
    """Of strings it is another one in each process."""
    fresh, known = Pickled(1, (2, 3)), Pickled(1, (2, 3))
    assert hash(known) == hash(known)
    assert pickle.dumps(known) == pickle.dumps(fresh)
    assert hash(dataclasses.replace(known, a=2)) == hash(Pickled(2, (2, 3)))
