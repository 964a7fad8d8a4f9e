"""Cache entries are taken only as this version wrote them for this key: anything else is as if nothing were there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.frontend.syntax import mistakes, tables
from tilec.support import staging
from tilec.support.resources import grammar_text
from tilec.support.staging import LARGEST_ENTRY, read_entry, write_entry


def test_what_was_kept_is_found_for_its_key_only(tmp_path: Path) -> None:
    write_entry(tmp_path / "one", "one", b"data")
    assert read_entry(tmp_path / "one", "one") == b"data"
    (tmp_path / "two").write_bytes((tmp_path / "one").read_bytes())
    with pytest.raises(ValueError, match="its contents have changed"):
        read_entry(tmp_path / "two", "two")


def test_an_entry_of_another_version_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry(tmp_path / "one", "one", b"data")
    monkeypatch.setattr(staging, "__version__", "another")
    with pytest.raises(ValueError, match="its contents have changed"):
        read_entry(tmp_path / "one", "one")


def _make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST_ENTRY + 1)


PLANTED: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("elsewhere"),
    "folder": lambda path: path.mkdir(),
    "sparse": _make_sparse,
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_no_file_of_a_plausible_size_is_not_read(planted: str, tmp_path: Path) -> None:
    write_entry(tmp_path / "elsewhere", "one", b"data")
    PLANTED[planted](tmp_path / "one")
    with pytest.raises((OSError, ValueError)):
        read_entry(tmp_path / "one", "one")


# ---- what is sealed, and still no tables -----------------------------------------------------------------------------


class _Planted:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._folder),)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"[1, 2, 3, 4, 5, 6, 7, 8]", b'[[{"X": 9}], [], 0, 0, "", {}, [], []]', b"[" * 100_000],
)
def test_parser_tables_with_another_content_are_made_again(content: bytes, tmp_path: Path) -> None:
    text = "start: X\nX: /x/\n%declare "  # never built: `_build` is told what to give
    name = tables.make_tables_name(text)
    expected = tables.Tables(({},), (), 0, 0, "", {}, (), ())
    write_entry(tmp_path / name, name, content)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "_build_tables", lambda _: expected)
        assert tables._load_tables(text, name, tmp_path) == expected
        patched.setattr(tables, "_build_tables", None)
        assert tables._load_tables(text, name, tmp_path) == expected


def test_nothing_in_an_entry_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = mistakes._build_parser(grammar_text("tile.lark"))
    monkeypatch.setattr(mistakes, "_build_parser", lambda _: expected)
    mistakes._load_parser("a grammar", tmp_path)
    (entry,) = tmp_path.iterdir()
    for content in (pickle.dumps(_Planted(tmp_path / "owned")), pickle.dumps({}), b"", pickle.dumps([1])):
        write_entry(entry, entry.name, content)
        assert mistakes._load_parser("a grammar", tmp_path) is expected
        assert [path.name for path in tmp_path.iterdir()] == [entry.name]
    monkeypatch.setattr(mistakes, "_build_parser", None)
    assert mistakes._load_parser("a grammar", tmp_path) is not expected, "the last one was put right"
