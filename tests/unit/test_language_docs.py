"""docs/language.md is what docs/generate.py makes now, and leaves out no name that the front end knows."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from tilec.explanations import EXPLANATIONS
from tilec.ir.types import BY_NAME
from tilec.ops.meet import MEETINGS
from tilec.ops.python import MATH_CONSTANTS, NAMES
from tilec.passes.vocabulary import supported_names

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(DOCS))


def test_the_page_is_up_to_date() -> None:
    current = (DOCS / "language.md").read_text(encoding="utf-8")
    assert current == generator().page(), "run `python docs/generate.py`"


def test_every_name_is_documented() -> None:
    text = (DOCS / "language.md").read_text(encoding="utf-8")
    types = {f"T.{name}" for name in BY_NAME}
    names = [*supported_names(), *NAMES, *MATH_CONSTANTS]
    shown = [(name, name.removeprefix("T.") if name in types else name) for name in names]
    assert [name for name, word in shown if f"`{word}`" not in text and f"`{word}(" not in text] == []


def test_errors_are_found_through_partials_closures_and_methods() -> None:
    page = generator()
    codes = {name.names[0]: page.errors(name.checks) for name in page.operations()}
    assert {"shape-mismatch", "wrong-scope", "dtype-mismatch", "wrong-argument"} <= set(codes["T.gemm"])
    assert "out-of-range" in codes["T.reduce_sum"]  # behind a partial
    assert all(set(found) <= EXPLANATIONS.keys() for found in codes.values())
    meetings = {meeting.spelled for meeting in MEETINGS.values()}
    plain = {"T.fence_proxy_async", "T.ptx_commit_group", *meetings}  # which take nothing
    assert {name for name, found in codes.items() if not found} == plain, "every operation can be called wrongly"
