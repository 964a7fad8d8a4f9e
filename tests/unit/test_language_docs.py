"""The pages that docs/generate.py makes are what it makes now, and leave out no name that the front end knows."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tilec.driver.explanations import EXPLANATIONS
from tilec.frontend.sema.vocabulary import list_supported_names
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops.functions.python import BUILTIN_NAMES, MATH_CONSTANTS
from tilec.ops.synchronisation.rendezvous import RENDEZVOUS

DOCS = Path(__file__).parents[2] / "docs"


@cache
def generator() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(DOCS))


@cache
def pages() -> dict[str, str]:
    return dict(generator().pages())


@pytest.mark.parametrize(
    "path",
    ["language.md", "diagnostics.md", "tilelang_names.md", "pipeline.md", "options.md", "language", "gallery.md"],
)
def test_the_pages_are_up_to_date(path: str) -> None:
    made = {name: text for name, text in pages().items() if name.split("/")[0] == path}
    current = (DOCS / path).rglob("*.md") if (DOCS / path).is_dir() else [DOCS / path]
    found = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in current}
    assert found == made, "run `python docs/generate.py`"


def test_every_name_is_documented() -> None:
    text = "\n".join(text for path, text in pages().items() if path.startswith("language/"))
    types = {f"T.{name}" for name in TYPES_BY_NAME}
    names = [*list_supported_names(), *BUILTIN_NAMES, *MATH_CONSTANTS]
    shown = [(name, name.removeprefix("T.") if name in types else name) for name in names]
    assert [name for name, word in shown if f"`{word}`" not in text and f"`{word}(" not in text] == []


def test_no_name_has_two_entries_and_the_index_leads_to_each() -> None:
    entries = [
        (path, line.removeprefix("### "))
        for path, text in pages().items()
        if path.startswith("language/")
        for line in text.splitlines()
        if line.startswith("### ")
    ]
    assert len(entries) > 100 and len({title for _, title in entries}) == len(entries)
    index = pages()["language.md"]
    anchors = set(re.findall(r"\((language/\w+\.md#[\w-]+)\)", index))
    assert anchors == {f"{path}#{generator().anchor(tuple(re.findall('`(.*?)`', title)))}" for path, title in entries}


def test_errors_are_found_through_partials_closures_and_methods() -> None:
    page = generator()
    codes = {name.names[0]: page.errors(name.checks) for name in page.operations()}
    assert {"shape-mismatch", "wrong-scope", "dtype-mismatch", "wrong-argument"} <= set(codes["T.gemm"])
    assert "out-of-range" in codes["T.reduce_sum"]  # behind a partial
    assert all(set(found) <= EXPLANATIONS.keys() for found in codes.values())
    meetings = {meeting.spelled for meeting in RENDEZVOUS.values()}
    plain = {"T.fence_proxy_async", "T.ptx_commit_group", *meetings}  # which take nothing
    assert {name for name, found in codes.items() if not found} == plain, "every operation can be called wrongly"


def test_every_diagnostic_has_an_entry_and_most_a_kernel_that_shows_it() -> None:
    text = pages()["diagnostics.md"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == sorted(EXPLANATIONS)
    shown = set(re.findall(r"\]\(\.\./(tests/errors/\w+\.tl)\)", text))
    assert len(shown) > 100 and all((DOCS.parent / path).is_file() for path in shown)
