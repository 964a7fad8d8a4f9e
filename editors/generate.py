"""Writes the colours of kernel files, editors/vscode/syntaxes/tilec.tmLanguage.json: `python editors/generate.py`.

A kernel file is Python, which its editor colours. What is added are names of the language, by what they are for; they
come from where the front end has them. The regular expressions are what both Oniguruma, which editors use, and Python's
`re` read alike, so that a test can try them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tilec.frontend import language
from tilec.frontend.language import LanguageEntry, list_documented_names
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops.language.unavailable_names import REFUSED

GRAMMAR = Path(__file__).parent / "vscode" / "syntaxes" / "tilec.tmLanguage.json"

# The scopes that themes know, by what a name is for; a name has the first one that it is in.
ALLOCATIONS = "storage.type.allocation"
GROUPS: dict[str, Iterable[LanguageEntry]] = {
    "keyword.control.loop": (*language.LOOPS, language.BREAK),
    ALLOCATIONS: language.ALLOCATION,
    "storage.modifier.structure": (*language.STRUCTURE, language.WARPGROUPS, *language.PIPELINES),
    "variable.language.thread": language.THREADS,
}
DTYPES = "support.type.dtype"
OPERATIONS = "support.function.operation"
REFUSED_NAMES = "invalid.deprecated.refused"


def groups() -> dict[str, list[str]]:
    """Every name behind `T.`, by its scope."""
    scopes = {name: scope for scope, entries in GROUPS.items() for entry in entries for name in entry.names}
    found: dict[str, list[str]] = {scope: [] for scope in (*GROUPS, DTYPES, OPERATIONS)}
    vectors = set(language.VECTOR_TYPES.names)
    for name in list_documented_names():
        if name.startswith("T."):
            is_type = name.removeprefix("T.") in TYPES_BY_NAME or name in vectors
            other = ALLOCATIONS if name.startswith("T.alloc_") else DTYPES if is_type else OPERATIONS
            found[scopes.get(name, other)].append(name.removeprefix("T."))
    found[REFUSED_NAMES] = list(REFUSED)
    return {scope: sorted(names) for scope, names in found.items()}


def _one_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names))


def grammar() -> dict[str, Any]:
    """The colours: Python's everywhere; these before them."""
    names = [
        {
            "match": rf"(?<![\w.])(T)\s*\.\s*({_one_of(members)})(?!\w)",
            "captures": {"1": {"name": "support.module.tilec"}, "2": {"name": f"{scope}.tilec"}},
        }
        for scope, members in groups().items()
    ]
    dtypes = {"match": rf"(?<=[\"'])({_one_of(TYPES_BY_NAME)})(?=[\"'])", "name": f"{DTYPES}.tilec"}
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "comment": "Made by `python editors/generate.py` from the front end of tilec.",
        "name": "tilec",
        "scopeName": "source.tilec",
        "fileTypes": ["tl"],
        "patterns": [{"include": "source.python"}],
        # Inside Python's own rules too, which only injections reach.
        "injections": {
            "L:source.tilec - comment - string": {"patterns": names},
            "L:source.tilec string - comment": {"patterns": [dtypes]},
        },
    }


def text() -> str:
    """All of the file."""
    return json.dumps(grammar(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    GRAMMAR.write_text(text(), encoding="utf-8")
