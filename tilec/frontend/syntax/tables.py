"""The parser that `grammar/tile.lark` describes.

Lark makes its LALR tables, which takes a quarter of a second: a wheel carries them, and a `cache_dir` keeps them.
Loading them takes two milliseconds. Importing Lark takes thirty, so that only a text with a mistake is read by it.
"""

from __future__ import annotations

import marshal
import sys
import zlib
from pathlib import Path

from tilec.frontend.syntax.lalr import Rule, Tables, tree
from tilec.frontend.syntax.tree import Branch
from tilec.support.kept_files import keep, kept, sealed
from tilec.support.resources import grammar, tables_folder

_FORMAT = 2  # of the tables: what they mean to `syntax.lalr`

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
    """Tables hold for one grammar, one meaning of them, and one Python, whose way to write data they are in."""
    version = "".join(map(str, sys.version_info[:2]))
    return f"tile-{_FORMAT}-{version}-{zlib.crc32(text.encode()):08x}-{len(text)}.tables"


def _load(text: str, name: str, cache_dir: Path | None) -> Tables:
    """From the tables that the wheel carries, or those of an earlier run; else made now and left for the next run."""
    for folder in (tables_folder(), cache_dir):
        if folder is None:
            continue
        try:
            return _read(folder / name)
        except (OSError, EOFError, ValueError, TypeError):
            continue  # absent, or not whole
    tables = _build(text)
    if cache_dir is not None:
        keep(cache_dir / name, _dumped(tables))
    return tables


def _read(path: Path) -> Tables:
    states, rules, *rest = marshal.loads(kept(path))
    return Tables(states, tuple(Rule(*rule) for rule in rules), *rest)


def _dumped(tables: Tables) -> bytes:
    return marshal.dumps((tables.states, tuple(map(tuple, tables.rules)), *tables[2:]))


def write_tables(folder: Path) -> Path:
    """Make the tables and save them in `folder`, as the build of the wheel does."""
    text = grammar("tile.lark")
    path = folder / tables_name(text)
    path.write_bytes(sealed(_dumped(_build(text))))
    return path


def _build(text: str) -> Tables:
    from tilec.frontend.syntax.mistakes import tables_of

    return tables_of(text)
