"""Under which conditions a nest reads an element: where it is needed, and nothing that a condition asks comes late."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tilec.codegen.elementwise.read_masks import ranks, read_masks
from tilec.codegen.elementwise.steps import Assignment
from tilec.ir.tile import Binary, Buffer, Const, Expr, Load, Select, Store, Unary, int32_const
from tilec.ir.types import BOOL, INT32

S = Buffer("s", (8,), INT32, "shared")
OUT = Buffer("out", (1,), INT32, "global")
GARBAGE = -12345


def at(place: int) -> Load:
    return Load(S, (int32_const(place),))


def is_positive(value: Expr) -> Expr:
    return Binary("gt", value, int32_const(0), BOOL)


def step(conditions: tuple[Expr, ...], value: Expr) -> Assignment:
    return Assignment(conditions, Store(OUT, (int32_const(0),), value))


def meaning(expr: Expr, memory: dict[int, int], read: set[int]) -> int:
    """The value as Python finds it, which evaluates no more than it needs; note what that reads."""
    match expr:
        case Const(value=value):
            return int(value)
        case Load(indices=(Const(value=place),)):
            read.add(int(place))
            return memory[int(place)]
        case Select(condition=condition, then=then, orelse=orelse):
            return meaning(then if meaning(condition, memory, read) else orelse, memory, read)
        case Binary(op="and", a=a, b=b):
            return meaning(a, memory, read) and meaning(b, memory, read)
        case Binary(op="or", a=a, b=b):
            return meaning(a, memory, read) or meaning(b, memory, read)
        case Binary(op="gt", a=a, b=b):
            return meaning(a, memory, read) > meaning(b, memory, read)
        case Binary(op="add", a=a, b=b):
            return meaning(a, memory, read) + meaning(b, memory, read)
        case Unary(op="not", a=a):
            return not meaning(a, memory, read)
    raise AssertionError(expr)


def run(steps: list[Assignment], memory: dict[int, int]) -> tuple[set[int], list[int]]:
    """Read as a thread does, and return the places that it reads and the values that are stored. What is not read has
    any value."""
    masks = read_masks(steps, lambda load: True)
    registers, read = dict.fromkeys(range(8), GARBAGE), set[int]()
    order = ranks(masks)
    for load, mask in sorted(masks.items(), key=lambda item: order[item[1]]):
        (place,) = load.indices
        assert isinstance(place, Const)
        if all(meaning(c, registers, set()) for c in mask):
            registers[int(place.value)] = memory[int(place.value)]
            read.add(int(place.value))
    done = [s.store.value for s in steps if all(meaning(c, registers, set()) for c in s.conditions)]
    return read, [meaning(value, registers, set()) for value in done]


def expected(steps: list[Assignment], memory: dict[int, int]) -> tuple[set[int], list[int]]:
    read = set[int]()
    done = [s.store.value for s in steps if all(meaning(c, memory, read) for c in s.conditions)]
    return read, [meaning(value, memory, read) for value in done]


A, B, C, D = (is_positive(at(place)) for place in range(4))


def either(a: Expr, b: Expr) -> Expr:
    return Binary("or", a, b, BOOL)


def both(a: Expr, b: Expr) -> Expr:
    return Binary("and", a, b, BOOL)


def no(a: Expr) -> Expr:
    return Unary("not", a, BOOL)


def choice(condition: Expr, then: Expr, orelse: Expr) -> Expr:
    return Select(condition, then, orelse, INT32)


FORMS: dict[str, list[Assignment]] = {
    "if": [step((A,), at(4))],
    "if in if": [step((A, B), at(4))],
    "or": [step((either(A, B),), at(4))],
    "or and": [step((either(A, both(B, C)),), at(4))],
    "not and": [step((no(both(A, B)),), at(4))],
    "elif": [step((A,), at(4)), step((no(A), B), at(4)), step((no(A), no(B), C), at(5))],
    "arms": [step((), choice(A, at(4), at(5)))],
    "both arms": [step((), choice(A, at(4), Binary("add", at(4), int32_const(1), INT32)))],
    "arms in arms": [step((), choice(A, choice(B, at(4), at(5)), choice(C, at(5), at(6))))],
    "an arm under if": [step((A,), choice(B, at(4), at(5)))],
    "an arm in a condition": [step((is_positive(choice(A, at(4), at(5))),), at(6))],
    "a condition read elsewhere": [step((B,), at(0)), step((both(A, B),), at(5))],
    "needed by what asks for it": [step((either(both(A, D), both(A, is_positive(at(3)))),), at(4))],
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_not_needed_is_not_read(name: str) -> None:
    for signs in range(1 << 7):
        memory = {place: 1 if signs >> place & 1 else -1 for place in range(7)}
        assert run(FORMS[name], memory) == expected(FORMS[name], memory)


def values(depth: int) -> st.SearchStrategy[Expr]:
    """Elements, choices and sums, of so many levels."""
    leaf = st.builds(at, st.integers(0, 5))
    if depth == 0:
        return leaf
    inner = values(depth - 1)
    total = st.builds(lambda a, b: Binary("add", a, b, INT32), inner, inner)
    return st.one_of(leaf, total, st.builds(choice, conditions(depth - 1), inner, inner))


def conditions(depth: int) -> st.SearchStrategy[Expr]:
    leaf = st.builds(is_positive, values(depth))
    if depth == 0:
        return leaf
    inner = conditions(depth - 1)
    return st.one_of(leaf, st.builds(either, inner, inner), st.builds(both, inner, inner), st.builds(no, inner))


STEPS = st.builds(step, st.lists(conditions(2), max_size=2).map(tuple), values(2))


@given(st.lists(STEPS, min_size=1, max_size=3), st.lists(st.integers(-2, 2), min_size=6, max_size=6))
def test_what_is_used_has_been_read(steps: list[Assignment], elements: list[int]) -> None:
    """However the conditions ask for one another's elements: then some may be read although nothing needs them."""
    memory = dict(enumerate(elements))
    read, stored = run(steps, memory)
    needed, wanted = expected(steps, memory)
    assert stored == wanted
    assert needed <= read
