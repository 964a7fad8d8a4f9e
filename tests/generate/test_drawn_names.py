"""What there is to draw is drawn: names of the language, types, targets and options. What is new and is not, fails."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from drawing.draw import drawn
from drawing.kernel import TYPES
from drawing.left_out import LEFT_OUT
from drawing.settings import NOT_DRAWN, TARGETS, VALUES, switches
from judging import Case
from meaning.numbers import FORMATS

from tilec.frontend.language import list_documented_names
from tilec.ir.types import TYPES_BY_NAME
from tilec.support import resources
from tilec.support.options import CompileOptions, EnvironmentSwitches

ROOT = Path(__file__).parents[2]
MOST = 6000


@cache
def used() -> dict[str, int]:
    """The names in drawn kernels, with the number of the first that has each; no more are drawn than are needed."""
    found: dict[str, int] = {}
    wanted = {name for name in list_documented_names() if name.startswith("T.")} - LEFT_OUT.keys()
    for number in range(MOST):
        found = dict.fromkeys(re.findall(r"\bT\.\w+", drawn(number)), number) | found
        if wanted <= found.keys():
            break
    return found


def test_every_name_is_drawn_or_said_to_be_tested_elsewhere() -> None:
    names = {name for name in list_documented_names() if name.startswith("T.")}
    assert names - used().keys() - LEFT_OUT.keys() == set(), "draw them in tests/generate/drawing, with their meaning"
    assert LEFT_OUT.keys() - names == set(), "there is no such name"
    assert LEFT_OUT.keys() & used().keys() == set(), "they are drawn"
    files = {path for reason in LEFT_OUT.values() for path in re.findall(r"tests/\S+\.(?:py|tl)", reason)}
    assert [path for path in sorted(files) if not (ROOT / path).exists()] == []


def test_every_type_and_target_is_drawn() -> None:
    assert {dtype.name for dtype in TYPES_BY_NAME.values()} == set(TYPES)
    assert TYPES_BY_NAME.keys() == FORMATS.keys()
    assert sorted(TARGETS) == sorted(resources.target_names())


def test_every_option_is_drawn_or_said_not_to_be() -> None:
    fields = set(CompileOptions.__match_args__)
    assert fields == {*switches(), *VALUES, *NOT_DRAWN, "switches"}
    assert set(EnvironmentSwitches.__match_args__) >= {"prefer_tma"}


def test_a_kernel_is_the_same_whenever_it_is_drawn() -> None:
    assert [drawn(number) for number in range(20)] == [drawn(number) for number in range(20)]
    assert Case(drawn(3)).options.target in TARGETS
