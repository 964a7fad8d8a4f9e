"""Which tests run: by default, and with `--exhaustive`.

Most tests are run over products of parameters, and most of a product is repetition. Of each test function the default
tier keeps as few forms as show every value of every parameter, where

* a parameter of `FREE` need not be shown in every value: it says on what machine, in which of the compiler's ways or
  from which random numbers a case is made, and other cases and other tests are made in the others. What is kept takes
  turns among them, and each test function begins with another one;
* a parameter of `FEW` is a number that something is drawn from: so many of its values are shown;
* what builds and runs whole kernels (`ONCE`) runs in one form of each test function, since others build and run the
  same passes, but for the `WITNESSES`, in which every value is shown as elsewhere;
* the test of the `TABLE` of such kernels runs in one form of each row;
* a test that is marked `some(n)` runs in n forms: it does the same with each of many samples, pages or probes;
* a test that is marked `weekly` or `peers` is left to the exhaustive tier: it starts other programs or takes long, and
  others find what it finds.

Which forms these are depends on the function's name and on its parameters, and on nothing else: the same tests in each
run, on each machine, whatever else is run. The others are deselected. Hypothesis draws fewer examples (`conftest.py`).
All forms are run with `--exhaustive`, with `--bless`, and when tests are named one by one (`file.py::test`).

`tests/planted/planting.py` plants faults in the compiler and reports which tier finds them.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

FREE = frozenset({"adversary", "arch", "level", "machine", "opt_level", "seed", "strategy", "target", "template"})

FEW = {"part": 4}

# Beginnings of node ids.
ONCE = ("tests/kernels/",)
WITNESSES = (
    "tests/kernels/test_pipeline_property.py",
    "tests/kernels/test_synchronisation.py",
    "tests/kernels/test_synchronisation_property.py",
)
TABLE = "tests/kernels/test_agreement.py::test_kernel_agrees"

Parameters = Mapping[str, object]
Tier = Literal["default", "exhaustive"]


class Test(NamedTuple):
    """One form of a test function: its node id, its parameters, and the marks that say which tier runs it."""

    id: str
    parameters: Parameters
    is_weekly: bool = False
    forms: int | None = None
    """So many forms of the function run in the default tier; None: what the rules say."""


def chosen(test: str, forms: Mapping[str, Parameters], count: int | None = None) -> set[str]:
    """Return those forms of the test function `test` that the default tier runs: `count` of them, or by the rules."""
    rest = sorted(forms, key=lambda form: zlib.crc32(form.encode()))
    if count is not None:
        return set(rest[:count])
    if test == TABLE:
        return set({forms[form]["row"]: form for form in rest}.values())
    if len(forms) == 1 or (test.startswith(ONCE) and not test.startswith(WITNESSES)):
        return {rest[0]}
    values = {form: _values(parameters) for form, parameters in forms.items()}
    shown_by = Counter(value for asked, _ in values.values() for value in asked)
    missing = _missing(shown_by)
    kept: set[str] = set()
    turns: Counter[tuple[str, object]] = Counter()  # how often the values of free parameters are among those kept

    def keep(form: str) -> None:
        asked, free = values[form]
        kept.add(form)
        missing.difference_update(asked)
        turns.update(free)

    for form in rest:
        if any(shown_by[value] == 1 for value in values[form][0] & missing):
            keep(form)
    while missing or not kept:
        best = max(
            (form for form in rest if form not in kept),
            key=lambda form: (len(values[form][0] & missing), -sum(turns[value] for value in values[form][1])),
        )
        keep(best)
    return kept


Value = tuple[str, object]


def _values(parameters: Parameters) -> tuple[frozenset[Value], frozenset[Value]]:
    """Those that are to be shown, and the free ones."""
    pairs = {(name, _comparable(value)) for name, value in parameters.items()}
    free = frozenset(pair for pair in pairs if pair[0] in FREE)
    return frozenset(pairs) - free, free


def _missing(shown_by: Counter[Value]) -> set[Value]:
    few: Counter[str] = Counter()
    missing = set()
    for name, value in shown_by:
        few[name] += 1
        if few[name] <= FEW.get(name, len(shown_by)):
            missing.add((name, value))
    return missing


def _comparable(value: object) -> object:
    """True, 1 and 1.0 are different parameters. Without a hash, as a dictionary is, a text."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return type(value), value


def selected(tests: Sequence[Test], tier: Tier) -> set[str]:
    """Return the ids of the tests that the tier runs."""
    if tier == "exhaustive":
        return {test.id for test in tests}
    functions: dict[str, list[Test]] = {}
    for test in tests:
        if not test.is_weekly:
            functions.setdefault(test.id.partition("[")[0], []).append(test)
    return {
        kept
        for function, forms in functions.items()
        for kept in chosen(function, {form.id: form.parameters for form in forms}, forms[0].forms)
    }
