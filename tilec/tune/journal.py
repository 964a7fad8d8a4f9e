"""Records the outcome of every trial in an SQLite file, so that an interrupted search can continue.

A journal belongs to one kernel, target and version of tilec. Trials are numbered in the order in which the search
proposed them, whatever the order of completion. Each outcome is written as soon as it is known.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from tilec.support import readers, schema
from tilec.support.diagnostics import raise_error
from tilec.support.exhaustion import find_exhausted_resource
from tilec.tune.outcome import Outcome, outcome_from_json, outcome_to_json
from tilec.tune.space import Point

FORMAT = "1"
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS predictions (point TEXT PRIMARY KEY, found TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (number INTEGER PRIMARY KEY, point TEXT NOT NULL UNIQUE, outcome TEXT);
"""


class Journal:
    """The journal at a path. `about` has the named properties of the kernel and compiler that must match an existing
    file."""

    def __init__(self, path: str, about: Mapping[str, str]) -> None:
        self.path = path
        is_new = not Path(path).exists()
        try:
            self._open(about)
        except BaseException:
            if is_new:  # remove an incomplete file
                with suppress(AttributeError):  # no connection was made
                    self.close()
                with suppress(OSError):
                    Path(path).unlink(missing_ok=True)
            raise

    def _open(self, about: Mapping[str, str]) -> None:
        """Open or make the database; write `about` into a new one, or raise `bad-journal` if an existing one has
        another.
        """
        with self._readable():
            self._base = sqlite3.connect(self.path, isolation_level=None)
            tables = {name for (name,) in self._base.execute("SELECT name FROM sqlite_master")}
            if tables and "about" not in tables:
                self.close()
                raise ValueError(f"it is another database, with a table {min(tables)}")
            self._base.executescript(_TABLES)
            known = dict(self._rows("name, value FROM about", tuple[str, str]))
        wanted = {"format": FORMAT, **about}
        if known:
            self._check(known, wanted)
        with self._write_transaction() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", wanted.items())

    def close(self) -> None:
        self._base.close()

    def read_predictions(self) -> dict[Point, int | str]:
        """Return for each recorded point its predicted cycles, or the reason why it cannot be built."""
        with self._readable():
            rows = self._rows("point, found FROM predictions", tuple[str, str])
            return {_decode_point(point): _decode_prediction(found) for point, found in rows}

    def predict(self, found: Iterable[tuple[Point, int | str]]) -> None:
        """Record predictions of points: cycles, or the reason why a point cannot be built."""
        with self._write_transaction() as cursor:
            rows = [(_encode_point(point), json.dumps(prediction)) for point, prediction in found]
            cursor.executemany("INSERT OR REPLACE INTO predictions VALUES (?, ?)", rows)

    def propose(self, points: Iterable[Point]) -> None:
        """Give these points trial numbers before their trials; points that have a number keep it."""
        with self._write_transaction() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO trials (point) VALUES (?)", [(_encode_point(p),) for p in points])

    def note(self, point: Point, outcome: Outcome) -> None:
        """Record the outcome of a point's trial; do nothing for a point that has no trial number."""
        values = outcome_to_json(outcome), _encode_point(point)
        with self._write_transaction() as cursor:
            cursor.execute("UPDATE trials SET outcome = ? WHERE point = ?", values)

    def outcomes(self) -> dict[Point, Outcome]:
        """Return the outcomes of completed trials by point, in the order of their numbers."""
        with self._readable():
            rows = self._rows("point, outcome FROM trials WHERE outcome IS NOT NULL ORDER BY number", tuple[str, str])
            return {_decode_point(point): outcome_from_json(outcome) for point, outcome in rows}

    def read_proposed(self) -> list[Point]:
        """Return the points of all trials, completed or not, in the order of their numbers."""
        with self._readable():
            return [_decode_point(point) for (point,) in self._rows("point FROM trials ORDER BY number", tuple[str])]

    def _rows(self, selected: str, wanted: Any) -> Iterator[Any]:
        """Yield the rows of an SQL selection, checked against types: SQLite stores any type in any column."""
        for row in self._base.execute(f"SELECT {selected}"):
            yield schema.read_value(wanted, row, "a row")

    def _check(self, known: dict[str, str], wanted: dict[str, str]) -> None:
        """Close and raise `bad-journal` if the journal was written for another kernel, target or compiler."""
        for name, value in wanted.items():
            if known.get(name) != value:
                shown = "" if len(value) > 40 else f": it has {known.get(name, 'none')}, this is {value}"
                self.close()
                title = f"{self.path} is the journal of another {name}{shown}"
                raise_error("bad-journal", title, help="give a new file with --journal; this one is not changed")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn errors of reading the journal into `bad-journal`, unless the machine ran out of a resource."""
        try:
            yield
        except sqlite3.OperationalError as error:  # the file is locked or cannot be opened, but may be intact
            if find_exhausted_resource(error):
                raise
            self._fail_unusable(f"cannot read {self.path}: {str(error).lower()}")
        except (sqlite3.Error, ValueError) as error:
            why = str(error).lower() if isinstance(error, sqlite3.Error) else error
            self._fail_unusable(f"{self.path} is not a journal: {why}")

    def _fail_unusable(self, title: str) -> NoReturn:
        raise_error("bad-journal", title, help="give another file with --journal")

    @contextmanager
    def _write_transaction(self) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor in a transaction, then committed, or rolled back; SQLite errors become `bad-journal`, as in
        `_readable`.
        """
        try:
            cursor = self._base.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # Ctrl-C may come before BEGIN or after COMMIT
                    cursor.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if find_exhausted_resource(error):
                raise
            self._fail_unusable(f"cannot write {self.path}: {str(error).lower()}")


def _encode_point(point: Point) -> str:
    """Return a point as JSON text that is the same whatever the order of axes."""
    return json.dumps(sorted(point))


def _decode_prediction(text: str) -> int | str:
    """Return the cycles, or the reason, in a prediction's JSON text; raise ValueError for another form."""
    found: int | str = schema.read_value(int | str, readers.parse_json(text), "prediction")
    return found


def _decode_point(key: str) -> Point:
    """Return the point in a JSON text; raise ValueError for another form."""
    found: Point = schema.read_value(Point, readers.parse_json(key), "point")
    return found
