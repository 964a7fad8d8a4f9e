"""Locates text that ships beside the code: grammars, target files and the glossary, in a wheel or in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def _find_data_folder(name: str) -> Path:
    """Return the folder of shipped data of this name: inside the package, as in a wheel, or beside it."""
    # A wheel carries the folders inside the package (see pyproject.toml); in a checkout they lie beside it.
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


@cache
def grammar_text(name: str) -> str:
    """Return the text of a grammar, named with its suffix: `tile.lark`."""
    return (_find_data_folder("grammar") / name).read_text(encoding="utf-8")


def tables_folder() -> Path:
    """Return the path of a wheel's folder of parser tables; in a checkout it does not exist."""
    return _PACKAGE / "_data" / "tables"


def target_file(name: str) -> Path:
    """Return the path of a target's file: one that ships, or a user's own, whose name ends in .toml."""
    return Path(name) if is_own_target(name) else _find_data_folder("targets") / f"{name}.toml"


def is_own_target(name: str) -> bool:
    """Return whether a target's name is the path of a user's file, which ends in .toml."""
    return name.endswith(".toml")


def target_stem(name: str) -> str:
    """Return how outputs for a target are named: its name, or the stem of a user's own file."""
    return Path(name).stem if is_own_target(name) else name


def target_text(name: str) -> str:
    """Return the text of a target's file, one that ships or a user's own."""
    return target_file(name).read_text(encoding="utf-8")


def target_names() -> tuple[str, ...]:
    """Return the names of the targets that ship."""
    return tuple(sorted(path.stem for path in _find_data_folder("targets").glob("*.toml")))


def glossary_text() -> str:
    """Return the text of docs/glossary.md."""
    return (_find_data_folder("docs") / "glossary.md").read_text(encoding="utf-8")


def cmake_folder() -> Path:
    """Return the path of the folder with `FindTilec.cmake`."""
    return _find_data_folder("cmake")
