"""Files that the documents name exist, and what docs/extending.md says is in one is there."""

from __future__ import annotations

import re

from fenced import BLOCK, ROOT, pages

WALK_THROUGH = "docs/extending.md"
FOLDERS = ("tilec", "tests", "docs", "samples", "targets", "benchmarks", "grammar", "cmake")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
WITHIN = re.compile(r"`([^`\n]+)`,? (?:in|of)\s+`((?:tilec|tests)/[\w/]+\.py)`")


def prose(page: str) -> str:
    return BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))


def test_files_that_are_named_exist() -> None:
    named = [(page, path) for page in pages() for path in PATH.findall(prose(page))]
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


def test_what_is_named_stands_in_its_file() -> None:
    named = WITHIN.findall(prose(WALK_THROUGH))
    assert len(named) > 12
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for _, path in named}
    assert [(name, path) for name, path in named if not re.search(rf"{re.escape(name)}", sources[path])] == []


def test_the_walk_through_names_every_step() -> None:
    paths = set(PATH.findall(prose(WALK_THROUGH)))
    assert len(paths) > 40 and {"tilec/ops/__init__.py", "tilec/ptx/isa.py", "tilec/target/table.py"} <= paths
