"""The parser that `grammar/tile.lark` describes.

Lark makes its LALR tables, which takes a quarter of a second: a wheel carries them, and a `cache_dir` keeps them.
Loading them takes two milliseconds. Importing Lark takes thirty, so that only a text with a mistake is read by it.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

from tilec.frontend.syntax.lalr import Rule, Tables, tree
from tilec.frontend.syntax.tree import Branch
from tilec.support.kept_files import keep, kept, sealed
from tilec.support.resources import grammar, tables_folder

_FORMAT = 3  # of the tables: what they mean to `syntax.lalr`

_made: dict[str, Tables] = {}
"""The tables of this process, by their grammar."""


def read(text: str, cache_dir: Path | None = None) -> Branch:
    """The tree of a text, or a `CompileError` that says what was expected instead."""
    found = legal(text, cache_dir)
    if found is None:
        from tilec.frontend.syntax.mistakes import explain

        explain(text + "\n", cache_dir)
    return found


def legal(text: str, cache_dir: Path | None = None, line: int = 1) -> Branch | None:
    """The tree of a text whose first line has this number; None where it is not in the language, which takes a
    hundredth of the time to say why."""
    # Every line, also the last, ends in a line feed: the grammar counts on it.
    return tree(_tables(cache_dir), text + "\n", line)


def _tables(cache_dir: Path | None) -> Tables:
    text = grammar("tile.lark")
    if text not in _made:
        _made[text] = _load(text, tables_name(text), cache_dir)
    return _made[text]


def tables_name(text: str) -> str:
    """Name the tables of one grammar and one meaning of them."""
    return f"tile-{_FORMAT}-{zlib.crc32(text.encode()):08x}-{len(text)}.tables"


def _load(text: str, name: str, cache_dir: Path | None) -> Tables:
    """From the tables that the wheel carries, or those of an earlier run; else made now and left for the next run."""
    for folder in (tables_folder(), cache_dir):
        if folder is None:
            continue
        try:
            return _read(folder / name)
        except (OSError, ValueError, TypeError, RecursionError):
            continue  # absent, or no tables of this grammar
    tables = _build(text)
    if cache_dir is not None:
        keep(cache_dir / name, name, _dumped(tables))
    return tables


def _read(path: Path) -> Tables:
    """Read tables and check their form: the parser follows the numbers in them without looking."""
    states, rules, start, end, scanner, keywords, ignored, with_newlines = json.loads(kept(path, path.name))
    steps = range(-len(rules), len(states))
    if not all(step in steps for state in states for step in state.values()) or not {start, end} <= set(steps):
        raise ValueError("a step leads nowhere")
    re.compile(scanner)
    return Tables(
        tuple(states), tuple(_rule(*rule) for rule in rules), start, end, scanner, keywords, tuple(ignored),
        tuple(with_newlines),
    )  # fmt: skip


def _rule(origin: str, size: int, name: str, kept: Any, trailing: int, is_single: bool, is_chain: bool) -> Rule:
    if kept is not None:
        kept = tuple((int(part), bool(is_spread), int(empty)) for part, is_spread, empty in kept)
    return Rule(origin, int(size), name, kept, int(trailing), bool(is_single), bool(is_chain))


def _dumped(tables: Tables) -> bytes:
    return json.dumps(tables, separators=(",", ":")).encode()


def write_tables(folder: Path) -> Path:
    """Make the tables and save them in `folder`, as the build of the wheel does."""
    text = grammar("tile.lark")
    path = folder / tables_name(text)
    path.write_bytes(sealed(_dumped(_build(text)), path.name))
    return path


def _build(text: str) -> Tables:
    from tilec.frontend.syntax.mistakes import tables_of

    return tables_of(text)
