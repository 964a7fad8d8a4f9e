"""The parser of `grammar/tile.lark`, and the files with its tables.

Lark takes a quarter of a second to make the LALR tables, so a wheel ships them, and a `cache_dir` keeps them. Loading
them takes two milliseconds. Importing Lark takes thirty, so it only parses texts with a mistake.
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

_FORMAT = 3  # raised with each change of the tables' meaning in `syntax.lalr`

_made: dict[str, Tables] = {}
"""The tables of this process, by grammar text."""


def read(text: str, cache_dir: Path | None = None) -> Branch:
    """Parse a text, or raise a `CompileError` with the syntax error."""
    found = legal(text, cache_dir)
    if found is None:
        from tilec.frontend.syntax.mistakes import explain

        explain(text + "\n", cache_dir)
    return found


def legal(text: str, cache_dir: Path | None = None, line: int = 1) -> Branch | None:
    """Parse a text, or return None if it is not in the language: a hundredth of the time of a message.

    `line` is the number of the first line."""
    # The grammar needs a line feed at the end of every line, also the last.
    return tree(_tables(cache_dir), text + "\n", line)


def _tables(cache_dir: Path | None) -> Tables:
    text = grammar("tile.lark")
    if text not in _made:
        _made[text] = _load(text, tables_name(text), cache_dir)
    return _made[text]


def tables_name(text: str) -> str:
    """Return the file name of the tables of one grammar, in one format version."""
    return f"tile-{_FORMAT}-{zlib.crc32(text.encode()):08x}-{len(text)}.tables"


def _load(text: str, name: str, cache_dir: Path | None) -> Tables:
    """Load the tables from the wheel or the cache, or build them and store them in the cache."""
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
    """Read tables and check their form, since the parser trusts the numbers in them."""
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
    """Build the tables and save them in `folder`, for the build of the wheel."""
    text = grammar("tile.lark")
    path = folder / tables_name(text)
    path.write_bytes(sealed(_dumped(_build(text)), path.name))
    return path


def _build(text: str) -> Tables:
    from tilec.frontend.syntax.mistakes import tables_of

    return tables_of(text)
