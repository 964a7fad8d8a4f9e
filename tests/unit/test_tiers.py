"""What the default tier keeps of a product of parameters."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
import tiers

TARGETS, STRATEGIES, SIZES = ("sm_80", "sm_90a", "sm_100a"), ("auto", "none"), tuple(range(9))


def product(**values: tuple[object, ...]) -> dict[str, tiers.Parameters]:
    rows = [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]
    return {f"test.py::test[{'-'.join(map(str, row.values()))}]": row for row in rows}


def kept(forms: dict[str, tiers.Parameters], test: str = "test.py::test") -> list[tiers.Parameters]:
    return [forms[form] for form in forms if form in tiers.chosen(test, forms)]


def test_a_case_is_run_in_one_form_each_time_in_another() -> None:
    found = kept(product(target=TARGETS, strategy=STRATEGIES, size=SIZES))
    assert len(found) == 9 and {parameters["size"] for parameters in found} == {*SIZES}
    assert set(Counter(parameters["target"] for parameters in found).values()) == {3}
    assert {*Counter(parameters["strategy"] for parameters in found).values()} <= {4, 5}


def test_every_value_is_shown_without_their_product() -> None:
    found = kept(product(rows=SIZES, columns=(1, 2, 3), is_packed=(False, True)))
    assert len(found) == 9
    assert {parameters["columns"] for parameters in found} == {1, 2, 3}
    assert {parameters["is_packed"] for parameters in found} == {False, True}


def test_free_parameters_alone_leave_one_form() -> None:
    assert len(kept(product(target=TARGETS, strategy=STRATEGIES))) == 1


def test_values_that_are_equal_and_not_the_same() -> None:
    assert len(kept(product(value=(1, 1.0, True, 2)))) == 4
    assert len(kept(product(value=({"a": 1}, {"a": 2}, ([1],))))) == 3


def test_what_is_drawn_is_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FEW", {"number": 4})
    assert len(kept(product(number=tuple(range(100))))) == 4
    assert len(kept(product(number=(1, 2)))) == 2


def test_whole_kernels_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "ONCE", ("kernels/",))
    monkeypatch.setattr(tiers, "WITNESSES", ("kernels/witness.py",))
    forms = product(target=TARGETS, size=SIZES)
    assert len(kept(forms, "unit/a.py::test")) == len(kept(forms, "kernels/witness.py::test")) == len(SIZES)
    assert len(kept(forms, "kernels/a.py::test")) == 1


def test_each_row_of_the_table_is_run_once() -> None:
    rows = tuple(f"row {i}" for i in range(20))
    forms = product(row=rows, target=TARGETS, strategy=STRATEGIES)
    found = kept(forms, tiers.TABLE)
    assert [parameters["row"] for parameters in found] == [*rows]
    assert {parameters["target"] for parameters in found} == {*TARGETS}
    assert {parameters["strategy"] for parameters in found} == {*STRATEGIES}


def test_of_what_does_the_same_with_many_some_is_run() -> None:
    forms = product(page=tuple(range(20)))
    tests = [tiers.Test(form, parameters, forms=3) for form, parameters in forms.items()]
    assert len(tiers.selected(tests, "default")) == 3
    assert len(tiers.selected(tests, "exhaustive")) == 20


def test_what_is_marked_weekly_is_left_out() -> None:
    tests = [tiers.Test("cli/cmake.py::test", {}, is_weekly=True), tiers.Test("cli/a.py::test", {})]
    assert tiers.selected(tests, "default") == {"cli/a.py::test"}
    assert tiers.selected(tests, "exhaustive") == {test.id for test in tests}


def test_what_is_named_is_there() -> None:
    tests = Path(tiers.__file__).parents[1]
    table, _, function = tiers.TABLE.partition("::")
    assert [path for path in (*tiers.ONCE, *tiers.WITNESSES) if not (tests / path).exists()] == []
    assert f"def {function}(row: " in (tests / table).read_text(encoding="utf-8")


def test_the_choice_is_the_same_whatever_else_is_run() -> None:
    """It depends on the order neither of the tests nor of the parameters."""
    forms = product(target=TARGETS, strategy=STRATEGIES, size=SIZES)
    chosen = tiers.chosen("test.py::test", forms)
    transposed = {form: dict(reversed(forms[form].items())) for form in reversed(forms)}
    assert tiers.chosen("test.py::test", transposed) == chosen
    tests = [*itertools.starmap(tiers.Test, forms.items()), tiers.Test("other.py::test[1]", {"n": 1})]
    assert tiers.selected(tests, "default") == chosen | {"other.py::test[1]"}


def test_no_form_is_called_by_where_the_checkout_is(request: pytest.FixtureRequest) -> None:
    """Which forms are run goes by what they are called."""
    root = str(request.config.rootpath)
    assert [item.nodeid for item in request.session.items if root in item.nodeid] == []
