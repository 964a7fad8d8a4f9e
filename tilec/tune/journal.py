"""What became of every variant that was tried, in an SQLite file: a search that was interrupted goes on where it was.

A journal is of one kernel, target and version of tilec. Its trials are numbered in the order in which the search
proposed them, whoever was done first. Each is written when it is known: nothing that is done is lost.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilec.support import readers, schema
from tilec.support.diagnostics import fail
from tilec.support.exhaustion import exhausted
from tilec.tune.outcome import Outcome, from_json, to_json
from tilec.tune.space import Point

FORMAT = "1"
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS predictions (point TEXT PRIMARY KEY, found TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (number INTEGER PRIMARY KEY, point TEXT NOT NULL UNIQUE, outcome TEXT);
"""


class Journal:
    """`about` is what has to be the same for what it says to hold: a word for each, and its value."""

    def __init__(self, path: str, about: Mapping[str, str]) -> None:
        self.path = path
        is_new = not Path(path).exists()
        try:
            self._open(about)
        except BaseException:
            if is_new:  # a half one is of no use to anyone
                with suppress(AttributeError):  # it could not even be made
                    self.close()
                with suppress(OSError):
                    Path(path).unlink(missing_ok=True)
            raise

    def _open(self, about: Mapping[str, str]) -> None:
        with self._readable():
            self._base = sqlite3.connect(self.path, isolation_level=None)
            tables = {name for (name,) in self._base.execute("SELECT name FROM sqlite_master")}
            if tables and "about" not in tables:
                self.close()
                raise ValueError(f"it is a database of something else, with a table {min(tables)}")
            self._base.executescript(_TABLES)
            known = dict(self._rows("name, value FROM about", tuple[str, str]))
        wanted = {"format": FORMAT, **about}
        if known:
            self._check(known, wanted)
        with self._written() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", wanted.items())

    def close(self) -> None:
        self._base.close()

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predictions(self) -> dict[Point, int | str]:
        """Cycles, or why a point cannot be built."""
        with self._readable():
            rows = self._rows("point, found FROM predictions", tuple[str, str])
            return {_point(point): _prediction(found) for point, found in rows}

    def predict(self, found: Iterable[tuple[Point, int | str]]) -> None:
        with self._written() as cursor:
            rows = [(_key(point), json.dumps(prediction)) for point, prediction in found]
            cursor.executemany("INSERT OR REPLACE INTO predictions VALUES (?, ?)", rows)

    # ---- trials ------------------------------------------------------------------------------------------------------

    def propose(self, points: Iterable[Point]) -> None:
        """Give them numbers, before anything is known of them; those that have one keep it."""
        with self._written() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO trials (point) VALUES (?)", [(_key(p),) for p in points])

    def note(self, point: Point, outcome: Outcome) -> None:
        with self._written() as cursor:
            cursor.execute("UPDATE trials SET outcome = ? WHERE point = ?", (to_json(outcome), _key(point)))

    def outcomes(self) -> dict[Point, Outcome]:
        """Of the trials that are done, in the order of their numbers."""
        with self._readable():
            rows = self._rows("point, outcome FROM trials WHERE outcome IS NOT NULL ORDER BY number", tuple[str, str])
            return {_point(point): from_json(outcome) for point, outcome in rows}

    def proposed(self) -> list[Point]:
        """Every trial, done or not, in the order of their numbers."""
        with self._readable():
            return [_point(point) for (point,) in self._rows("point FROM trials ORDER BY number", tuple[str])]

    def _rows(self, selected: str, wanted: Any) -> Iterator[Any]:
        """SQLite holds any type in any column."""
        for row in self._base.execute(f"SELECT {selected}"):
            yield schema.read(wanted, row, "a row")

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _check(self, known: dict[str, str], wanted: dict[str, str]) -> None:
        for name, value in wanted.items():
            if known.get(name) == value:
                continue
            shown = "" if len(value) > 40 else f": it has {known.get(name, 'none')}, this is {value}"
            self.close()
            fail(
                "bad-journal",
                f"{self.path} is the journal of another {name}{shown}",
                help="name a new one with --journal; this one stays as it is",
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # not the file's own fault: it is locked, or may not be opened
            if exhausted(error):
                raise
            fail("bad-journal", f"cannot read {self.path}: {str(error).lower()}", help="name another with --journal")
        except (sqlite3.Error, ValueError) as error:
            why = str(error).lower() if isinstance(error, sqlite3.Error) else error
            fail("bad-journal", f"{self.path} is no journal: {why}", help="name another with --journal")

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Cursor]:
        """A transaction: what is in it is written as a whole, or not at all."""
        try:
            cursor = self._base.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # Ctrl-C may come before the first of these, or behind the last
                    cursor.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if exhausted(error):
                raise
            fail("bad-journal", f"cannot write {self.path}: {str(error).lower()}", help="name another with --journal")


def _key(point: Point) -> str:
    """The same for the same values, in whatever order a space has its axes."""
    return json.dumps(sorted(point))


def _prediction(text: str) -> int | str:
    found: int | str = schema.read(int | str, readers.json_value(text), "prediction")
    return found


def _point(key: str) -> Point:
    found: Point = schema.read(Point, readers.json_value(key), "point")
    return found
