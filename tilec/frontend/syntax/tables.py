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

from tilec.frontend.syntax.lalr import Branch, Rule, Tables, build_tree
from tilec.support.resources import grammar_text, tables_folder
from tilec.support.staging import add_seal, read_entry, write_entry

_FORMAT_VERSION = 3  # raised with each change of the tables' meaning in `syntax.lalr`
_loaded_tables: dict[str, Tables] = {}
"""The tables of this process, by grammar text."""


def parse_text(text: str, cache_dir: Path | None = None) -> Branch:
    """Parse a text to a tree, or raise a `CompileError` that explains its first syntax error."""
    found = try_parse_text(text, cache_dir)
    if found is None:
        from tilec.frontend.syntax.mistakes import explain_mistake

        explain_mistake(text + "\n", cache_dir)
    return found


def try_parse_text(text: str, cache_dir: Path | None = None, line: int = 1) -> Branch | None:
    """Parse a text to a tree, or return None if it is not in the language, at a hundredth of an error's time.

    `line` is the number of the first line.
    """
    # The grammar needs a line feed at the end of every line, also the last.
    return build_tree(_get_tables(cache_dir), text + "\n", line)


def _get_tables(cache_dir: Path | None) -> Tables:
    """Return the parser tables of the tile grammar, loaded once in each process."""
    text = grammar_text("tile.lark")
    if text not in _loaded_tables:
        _loaded_tables[text] = _load_tables(text, make_tables_name(text), cache_dir)
    return _loaded_tables[text]


def make_tables_name(text: str) -> str:
    """Return the file name of a grammar's tables, which changes with its text and the format version."""
    return f"tile-{_FORMAT_VERSION}-{zlib.crc32(text.encode()):08x}-{len(text)}.tables"


def _load_tables(text: str, name: str, cache_dir: Path | None) -> Tables:
    """Load a grammar's tables from the wheel or the cache folder, or build them and store them in the cache."""
    for folder in (tables_folder(), cache_dir):
        if folder is None:
            continue
        try:
            return _read_tables(folder / name)
        except (OSError, ValueError, TypeError, RecursionError):
            continue  # absent, or no tables of this grammar
    tables = _build_tables(text)
    if cache_dir is not None:
        write_entry(cache_dir / name, name, _dump_tables(tables))
    return tables


def _read_tables(path: Path) -> Tables:
    """Read tables from a sealed file and check that every step leads to a state or rule; raise an error otherwise."""
    states, rules, start, end, scanner, keywords, ignored, with_newlines = json.loads(read_entry(path, path.name))
    steps = range(-len(rules), len(states))
    if not all(step in steps for state in states for step in state.values()) or not {start, end} <= set(steps):
        raise ValueError("a step leads nowhere")
    re.compile(scanner)
    return Tables(
        tuple(states), tuple(_check_rule(*rule) for rule in rules), start, end, scanner, keywords, tuple(ignored),
        tuple(with_newlines),
    )  # fmt: skip


def _check_rule(origin: str, size: int, name: str, kept: Any, trailing: int, is_single: bool, is_chain: bool) -> Rule:
    """Make a `Rule` of the entries of a tables file, each converted to its type."""
    if kept is not None:
        kept = tuple((int(part), bool(is_spread), int(empty)) for part, is_spread, empty in kept)
    return Rule(origin, int(size), name, kept, int(trailing), bool(is_single), bool(is_chain))


def _dump_tables(tables: Tables) -> bytes:
    return json.dumps(tables, separators=(",", ":")).encode()


def write_tables(folder: Path) -> Path:
    """Build the tile grammar's tables, write them to a sealed file in `folder`, and return its path."""
    text = grammar_text("tile.lark")
    path = folder / make_tables_name(text)
    path.write_bytes(add_seal(_dump_tables(_build_tables(text)), path.name))
    return path


def _build_tables(text: str) -> Tables:
    """Build a grammar's parser tables by Lark, which is imported only here."""
    from tilec.frontend.syntax.mistakes import extract_tables

    return extract_tables(text)
