"""Tables about statements are keyed by the statements themselves, never by a number that another one may get."""

from __future__ import annotations

import ast
import gc
import re
from pathlib import Path

from tilec.support.identity import IdentityKey

PACKAGE = Path(__file__).parents[2] / "tilec"
MAY = {"support/identity.py"}
"""These keep what the number is of."""


def test_equal_values_are_not_the_same() -> None:
    one, other = (1, [2]), (1, [2])
    assert one == other
    table = {IdentityKey(one): "one"}
    assert table[IdentityKey(one)] == "one"
    assert IdentityKey(other) not in table
    assert IdentityKey(one) != one
    assert (IdentityKey(one), 1) in {(IdentityKey(one), 1)}
    assert repr(IdentityKey(3)) == "Same(3)"


def test_what_is_in_a_table_lives() -> None:
    """So no other object gets its number."""
    table = {IdentityKey([number]) for number in range(100)}
    gc.collect()
    assert not any(IdentityKey([number]) in table for number in range(1000))
    assert sorted(each.of[0] for each in table) == list(range(100))


def test_nobody_else_asks_for_numbers_of_objects() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\bid\b", text) else ():
            is_asked = isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load)
            if is_asked and name not in MAY:
                found.append(f"{name}:{node.lineno}")
    assert not found, f"use tilec.support.identity.IdentityKey: {', '.join(found)}"
