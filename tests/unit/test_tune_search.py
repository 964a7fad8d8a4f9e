"""The tuner's search: what is proposed in which order, what the journal keeps, what becomes of processes that end."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilec as package
from tilec.support.diagnostics import CompileError
from tilec.support.exhaustion import find_exhausted_resource
from tilec.support.options import CompileOptions
from tilec.tune import journal as journals
from tilec.tune.engines import LocalEngine, LostTask
from tilec.tune.journal import Journal
from tilec.tune.knobs import find_written_point
from tilec.tune.outcome import Outcome
from tilec.tune.search import BATCH_SIZE, SearchResult, TrialWork, search_space
from tilec.tune.space import Point, build_space

ABOUT = {"kernel": "a", "target": "sm_80"}
SPACE = build_space([("x", list(range(30)))])
WRITTEN: Point = (("x", 10),)
"""The file as it is."""


def model(x: object) -> int | str:
    """Best at 29; 7 is impossible."""
    assert isinstance(x, int)
    return "x = 7 does not fit" if x == 7 else 1000 - x


def truth(x: object) -> Outcome:
    """Best at 25; 28 the compiler refuses."""
    assert isinstance(x, int)
    return Outcome(refusal="28 is too many") if x == 28 else Outcome(by_levels=100 + abs(x - 25), by_schedule=90)


def only(point: Point) -> object:
    return point[0][1]


class Here:
    """An engine in this process that ends after so many trials, and answers in another order than it is asked."""

    processes = 1

    def __init__(self, after: int = 10**6) -> None:
        self.left, self.tried = after, list[object]()

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for number in reversed(range(len(tasks))):
            if function is truth:
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
                self.tried.append(tasks[number])
            yield number, function(tasks[number])

    def close(self) -> None: ...


class Nobody:
    def show_progress(self, phase: str, done: int, total: int) -> None: ...

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None: ...


def searched(path: Path, trials: int, engine: Here, baseline: Point = WRITTEN) -> tuple[SearchResult, list[Point]]:
    journal = Journal(str(path), ABOUT)
    try:
        return search_space(
            SPACE, trials, TrialWork(model, truth, only), engine, journal, Nobody(), baseline=baseline
        ), journal.read_proposed()
    finally:
        journal.close()


def test_the_most_promising_are_tried_first(tmp_path: Path) -> None:
    engine = Here()
    found, proposed = searched(tmp_path / "j", 7, engine)
    assert [only(point) for point in proposed] == [10, 29, 28, 27, 26, 25, 24]
    assert [only(point) for point, _ in found.built("")] == [25, 26, 24, 27, 29, 10]
    assert [rejection.reason for rejection in found.ranking.rejected] == ["x = 7 does not fit"]


def test_nothing_comes_before_the_file_as_written_that_is_no_better(tmp_path: Path) -> None:
    """Whatever the model says of it: it is the first trial, also of a search for one, and one that it refuses."""
    found, proposed = searched(tmp_path / "one", 1, Here())
    assert proposed == [WRITTEN] and found.built("")[0][0] == WRITTEN
    found, _ = searched(tmp_path / "best", 5, Here(), baseline=(("x", 25),))
    assert found.built("")[0][0] == (("x", 25),)
    found, _ = searched(tmp_path / "refused", 5, Here(), baseline=(("x", 7),))
    assert found.trials[0][0] == (("x", 7),) and not found.trials[0][1].refusal


def test_the_file_as_written_may_be_none_of_the_space(tmp_path: Path) -> None:
    def known(point: Point) -> object:
        return only(point) if point else 12

    journal = Journal(str(tmp_path / "j"), ABOUT)
    found = search_space(SPACE, 4, TrialWork(model, truth, known), Here(), journal, Nobody())
    journal.close()
    assert [point for point, _ in found.trials][:2] == [(), (("x", 29),)]
    assert found.baseline == () and len(found.trials) == 4


def test_what_is_written_as_a_point_of_a_space() -> None:
    axes = build_space([("bM", [64, 128]), ("--cluster", ["auto", "2x1"]), ("--ping-pong", [True, False])])
    base = CompileOptions()
    written = (("bM", 64), ("--cluster", "auto"), ("--ping-pong", True))
    assert find_written_point(axes, {"bM": 64, "bN": 8}, base) == written
    assert (
        find_written_point(axes, {"bM": 32}, base)
        == find_written_point(axes, {}, base)
        == find_written_point(axes, {"bM": True}, base)
        == ()
    )
    given = replace(base, defines=(("bM", 128),), ping_pong=False)
    assert find_written_point(axes, {"bM": 64}, given) == (("bM", 128), ("--cluster", "auto"), ("--ping-pong", False))


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole, _ = searched(tmp_path / "whole", 20, Here())
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "parts", 20, Here(after=BATCH_SIZE + 3))
    again = Here()
    resumed, proposed = searched(tmp_path / "parts", 20, again)
    assert resumed == whole
    assert len(again.tried) == 20 - BATCH_SIZE - 3
    assert proposed == [point for point, _ in whole.trials]
    nothing_new = Here()
    assert searched(tmp_path / "parts", 20, nothing_new)[0] == whole
    assert nothing_new.tried == []


def test_no_more_than_the_space_has(tmp_path: Path) -> None:
    found, _ = searched(tmp_path / "j", 500, Here())
    assert len(found.trials) == 29


def test_spilling_variants_come_last_unless_they_are_measured() -> None:
    fast, slow = Outcome(by_levels=10, spilled_bytes=8, milliseconds=1.0), Outcome(by_levels=20, milliseconds=2.0)
    assert slow.rank("") < fast.rank("")
    assert fast.rank("H200") < slow.rank("H200")


def test_what_is_known_without_a_gpu_is_not_all_with_one() -> None:
    assert Outcome(by_levels=10).holds("")
    assert not Outcome(by_levels=10).holds("H200")
    assert Outcome(by_levels=10, milliseconds=1.0, gpu="H200").holds("H200")
    assert not Outcome(by_levels=10, milliseconds=1.0, gpu="H200").holds("H100")
    assert Outcome(refusal="too large").holds("H200")


# ---- the journal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"kernel": "b", "target": "sm_80"}, {"kernel": "a", "target": "sm_90a"}])
def test_a_journal_of_another(other: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "j"
    searched(path, 4, Here())
    before = path.read_bytes()
    with pytest.raises(CompileError, match=r"is the journal of another (kernel|target)") as caught:
        Journal(str(path), other)
    assert caught.value.diagnostics[0].code == "bad-journal"
    assert path.read_bytes() == before


def test_a_new_journal_that_has_no_room_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_TABLES", f"PRAGMA max_page_count = 2; {journals._TABLES}")
    with pytest.raises(sqlite3.OperationalError) as caught:
        Journal(str(tmp_path / "j"), ABOUT)
    assert find_exhausted_resource(caught.value) == "room on the disk"
    assert not list(tmp_path.iterdir())


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("block_M = 64, and so on, for more than a page of a database\n" * 100)
    with pytest.raises(CompileError, match="is not a journal: file is not a database"):
        Journal(str(path), ABOUT)
    base = sqlite3.connect(tmp_path / "broken")
    base.execute("CREATE TABLE trials (number INTEGER PRIMARY KEY, point TEXT NOT NULL UNIQUE, outcome TEXT)")
    base.execute("INSERT INTO trials VALUES (1, '[]', '{\"speed\": 3}')")
    base.commit()
    base.close()
    with pytest.raises(CompileError, match="is not a journal"):
        Journal(str(tmp_path / "broken"), ABOUT).outcomes()


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE customers (name TEXT)")
    with pytest.raises(CompileError, match="it is another database, with a table customers"):
        Journal(str(path), ABOUT)
    with sqlite3.connect(path) as base:
        assert [name for (name,) in base.execute("SELECT name FROM sqlite_master")] == ["customers"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE predictions SET found = '[1, 2]'", "prediction: expected a whole number or a string, found [1, 2]"),
        (
            """UPDATE trials SET outcome = '{"by_levels": "x", "intervals": []}'""",
            "outcome.by_levels: expected a whole number, found 'x'",
        ),
    ],
)
def test_values_that_are_none(change: str, said: str, tmp_path: Path) -> None:
    searched(tmp_path / "j", 2, Here())
    with sqlite3.connect(tmp_path / "j") as base:
        base.execute(change)
    with pytest.raises(CompileError) as refused:
        searched(tmp_path / "j", 2, Here())
    assert said in refused.value.diagnostics[0].title


def test_the_order_of_axes_does_not_matter(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"), ABOUT)
    journal.propose([(("x", 1), ("a", 2))])
    journal.note((("a", 2), ("x", 1)), Outcome(by_levels=7))
    assert journal.outcomes() == {(("a", 2), ("x", 1)): Outcome(by_levels=7)}
    journal.close()


class Losing(Here):
    """Loses the trial of 29."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for number, answer in super().run(function, tasks):
            yield number, LostTask("its process ended") if (function, tasks[number]) == (truth, 29) else answer


def test_a_trial_that_was_lost_is_tried_again_by_the_next_search(tmp_path: Path) -> None:
    found, _ = searched(tmp_path / "j", 3, Losing())
    assert dict(found.trials)[(("x", 29),)] == Outcome(refusal="its process ended")
    again = Here()
    found, _ = searched(tmp_path / "j", 3, again)
    assert again.tried == [29]
    assert dict(found.trials)[(("x", 29),)] == truth(29)


# ---- processes -------------------------------------------------------------------------------------------------------


def square(x: int) -> int:
    if x == 3:
        os._exit(9)
    return x * x


def test_a_process_that_ends_costs_only_its_own_task() -> None:
    engine = LocalEngine(2)
    try:
        answers = dict(engine.run(square, [1, 2, 3, 4, 5]))
        assert isinstance(answers.pop(2), LostTask)
        assert answers == {0: 1, 1: 4, 3: 16, 4: 25}
        assert dict(engine.run(square, [6])) == {0: 36}
    finally:
        engine.close()


SEARCHER = """
import sys, time
from tilec.tune.engines import LocalEngine
if __name__ == "__main__":
    engine = LocalEngine(1)
    for _ in engine.run(print, ["begun"]): pass
    print(*engine._pool._processes, flush=True)
    time.sleep(60)
"""


def test_processes_do_not_outlive_a_search_that_is_killed(tmp_path: Path) -> None:
    """Whose pipes they would hold open, and whose journal nobody would write any more."""
    program = tmp_path / "searcher.py"
    program.write_text(SEARCHER)
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment) as searcher:
        assert searcher.stdout is not None
        assert searcher.stdout.readline() == "begun\n"
        worker = int(searcher.stdout.readline())
        searcher.kill()
        searcher.communicate(timeout=30)  # which is when all that have its pipe have ended
    assert not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_bytes()
