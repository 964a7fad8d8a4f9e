"""What is fuzzed besides kernels and their stages: the files that tilec keeps for itself and for people.

Each is read as the command reads it that is given it, and what it says is used as that command uses it.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from mutate import mutated, mutated_bytes, mutated_json
from subject import Subject, json_mutant, refused, toml_mutant

from tilec.calibrate import measure, plan
from tilec.calibrate.probe import Probe
from tilec.calibrate.rewrite import rewrite_rows
from tilec.cli.commands.calibrate import PLAN_FILE, make_cubin_reader
from tilec.cli.commands.problem import read_problems
from tilec.driver.build import build_library
from tilec.driver.emulation.emulate_ptx import parse_arguments
from tilec.driver.observer import Observer, PipelineStopped
from tilec.sched import cache as schedules, comparison
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.sched.text import solution_to_json
from tilec.sched.trace import TraceError
from tilec.sched.verify import find_violations
from tilec.support import resources
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.support.staging import write_entry
from tilec.target import table as target
from tilec.tune import knobs, space_file, tuned
from tilec.tune.journal import Journal
from tilec.tune.outcome import Outcome
from tilec.tune.search import TrialWork, search_space
from tilec.tune.space import Point, Space, build_space

SMALL = """import tilelang.language as T

block = 128

@T.prim_func
def main(A: T.Tensor((256, 256), "float16"), B: T.Tensor((256, 128), "float16"), C: T.Tensor((256, 128), "float32")):
    with T.Kernel(256 // block, threads=128) as bx:
        A_s = T.alloc_shared((block, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        C_l = T.alloc_fragment((block, 128), "float32")
        T.clear(C_l)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[bx * block, k * 64], A_s)
            T.copy(B[k * 64, 0], B_s)
            T.gemm(A_s, B_s, C_l)
        T.copy(C_l, C[bx * block, 0])
"""
_SOURCE = SourceFile("small.tl", SMALL)
_BASE = CompileOptions(target="sm_90a", scheduler="heuristic")


def _read(use: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            use(text)
        except CompileError as error:
            return refused(error, None)
        return True

    return accepts


# ---- calibration -----------------------------------------------------------------------------------------------------


@cache
def _measurements() -> list[str]:
    machine = target.load_target("sm_90a")
    names = [figure for probe in measure.select_probes(machine) for figure in probe.figures]
    figures = {name: tuple(_cycles(name) + share for share in (0.0, 0.5, 1.25)) for name in names}
    made = measure.Measurement("sm_90a", "Some GPU", "580.1", "2026-01-01", 132, figures, {"a probe": "why not"})
    return [measure.to_json(made)]


def _cycles(figure: str) -> float:
    """Chains and what stands alone take longest, and sums least."""
    if "fma" in figure:
        return 4.0
    return 900.0 if "latency" in figure or "alone" in figure else 20.0 + len(figure)


def _use_measurement(text: str) -> None:
    measurement = measure.from_json(text, "mutant.json")
    for name in measurement.figures:
        assert f"{measurement.spread(name).relative:.1%}"
    made, _ = rewrite_rows(resources.target_text("sm_90a"), plan.derive_checked_rows(measurement).rows, "sm_90a.toml")
    target.parse_target(made, "sm_90a.toml")


_PROBES = measure.PROBES[:3]


def _plans() -> list[str]:
    probes = [
        {
            "probe": probe.name, "file": f"{probe.entry}.cubin", "sha256": hashlib.sha256(_cubin(probe)).hexdigest(),
            "figures": probe.figures, "trips": probe.trip_count, "operations": probe.operations,
        }
        for probe in _PROBES
    ]  # fmt: skip
    return [json.dumps({"target": "sm_90a", "probes": probes})]


def _cubin(probe: Probe) -> bytes:
    return f"cubin of {probe.name}".encode()


def _use_plan(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for probe in _PROBES:
            (Path(folder) / f"{probe.entry}.cubin").write_bytes(_cubin(probe))
        (Path(folder) / PLAN_FILE).write_text(text, encoding="utf-8")
        cubin_of = make_cubin_reader(folder, target.load_target("sm_90a"))
        for probe in _PROBES:
            assert cubin_of(probe) == _cubin(probe)


# ---- tuning ----------------------------------------------------------------------------------------------------------


@cache
def _schedule() -> str:
    observer = Observer(keep=("schedule",))
    build_library(_SOURCE, _BASE, observer)
    return observer.texts["schedule"].decode()


def _tuned_files() -> list[str]:
    point = (
        ("block", 128),
        ("--cluster", "none"),
        ("--stmatrix", False),
        ("--consumer-warpgroups", 1),
        ("--subtile", 1),
    )
    return [tuned.write_tuned(tuned.TunedVariant(_SOURCE.digest(), "sm_90a", "main", point, "3.0 µs", _schedule()))]


def _use_tuned(text: str) -> None:
    options = tuned.apply_tuned(tuned.read_tuned(text, "mutant.json"), _BASE, "mutant.json")
    with suppress(PipelineStopped):
        build_library(_SOURCE, options, Observer(stop_after="schedule"))


_SPACE_FILES = [
    '[constants]\nblock = [64, 128]\ndtype = "float16"\nscale = [0.5, 1]\n'
    '[options]\ncluster = ["none", "2x1", "auto"]\nstmatrix = [true, false]\nconsumers = ["auto", 2]\nsubtile = 2\n',
    '[options]\nrasterisation = ["none", 8]\nregister-stages = ["1", "auto"]\nscheduler = "heuristic"\n',
]


def _use_space(text: str) -> None:
    found = space_file.read_space(text, "mutant.toml", ["block", "dtype", "scale"])
    knobs.find_written_point(found, {"block": 64}, _BASE)
    for number, point in enumerate(found.points()):
        assert knobs.apply_point(point, _BASE)
        if number == 50:
            break


_ABOUT = {"kernel": "a", "target": "sm_80"}
_POINTS: Space = build_space([("x", list(range(6))), ("--cluster", ["none", "2x1"])])


class _Here:
    """An engine that carries out everything in this process."""

    processes = 1

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from ((number, function(task)) for number, task in enumerate(tasks))

    def close(self) -> None: ...


class _Nobody:
    def show_progress(self, phase: str, done: int, total: int) -> None: ...

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None: ...


def _searched(path: str) -> None:
    work = TrialWork(lambda point: 100 - len(str(point)), lambda point: Outcome(by_levels=90), lambda point: point)
    journal = Journal(path, _ABOUT)
    try:
        assert search_space(_POINTS, 8, work, _Here(), journal, _Nobody()).built("")
        journal.read_proposed()
    finally:
        journal.close()


@cache
def _journals() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        _searched(str(path))
        return [path.read_bytes()]


def _of_bytes(corpus: list[bytes], seed: str) -> bytes:
    return mutated_bytes(random.Random(seed).choice(corpus), seed)


def _use_journal(data: bytes) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        path.write_bytes(data)
        try:
            _searched(str(path))
        except CompileError as error:
            return refused(error, None)
    return True


_TABLES = {"about": "name, value", "predictions": "point, found", "trials": "number, point, outcome"}


@cache
def _rows() -> list[str]:
    """What its tables hold, as JSON; of texts that are JSON, what they say."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        _searched(str(path))
        base = sqlite3.connect(path)
        rows = {name: base.execute(f"SELECT {columns} FROM {name}").fetchall() for name, columns in _TABLES.items()}
        base.close()
    said = {name: [[_json(value) for value in row] for row in rows[name]] for name in ("predictions", "trials")}
    return [json.dumps({**rows, **said})]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _use_rows(text: str) -> None:
    """A database that SQLite takes; where it takes no such row, the mutant is refused."""
    try:
        tables = json.loads(text)
    except ValueError:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "j")
        Path(path).write_bytes(_journals()[0])
        base = sqlite3.connect(path)
        base.execute("PRAGMA synchronous = OFF")
        for name, columns in _TABLES.items():
            base.execute(f"DELETE FROM {name}")
            for row in _listed(tables.get(name) if isinstance(tables, dict) else ()):
                values = [value if isinstance(value, str | None) else json.dumps(value) for value in _listed(row)]
                try:
                    marks = ", ".join("?" * len(values))
                    base.execute(f"INSERT INTO {name} ({columns}) VALUES ({marks})", values)
                except (sqlite3.Error, UnicodeEncodeError):
                    continue
        base.commit()
        base.close()
        _searched(path)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- schedules that were kept ----------------------------------------------------------------------------------------


def _use_compared(text: str) -> None:
    try:
        read = comparison.read_trace_record(text)
    except TraceError as error:
        raise_error("bad-trace", str(error))
    for pair in ((read, comparison.read_trace_record(_schedule())), (comparison.read_trace_record(_schedule()), read)):
        assert str(comparison.compare_traces(*pair))


@cache
def _solved() -> tuple[Problem, Solution]:
    observer = Observer(keep=("problem",))
    build_library(_SOURCE, _BASE, observer)
    (problem,), _ = read_problems(observer.texts["problem"].decode(), "small.json")
    return problem, solve_problem(problem, scheduler="heuristic")


def _use_solution(text: str) -> bool:
    """Whether it was taken, and not solved again."""
    problem, solution = _solved()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedules" / f"{schedules.compute_cache_key(problem, 1.0)}.json"
        write_entry(path, path.stem, text.encode(errors="surrogatepass"))
        taken = schedules.solve_cached(problem, Path(folder), solver=lambda *_: solution)
        assert not list(find_violations(problem, taken.schedule))
        return taken is not solution


# ---- a target file, by who compiles for it ---------------------------------------------------------------------------


def _compile_for(text: str) -> None:
    """A kernel as far as PTX, where this is what the file of its target says."""
    name = next((name for name in resources.target_names() if f'"{name}"' in text), "sm_80")
    target.load_target.cache_clear()
    try:
        with patch.object(resources, "target_text", return_value=text), suppress(PipelineStopped):
            build_library(_SOURCE, replace(_BASE, target=name), Observer(stop_after="ptx"))
    finally:
        target.load_target.cache_clear()


# ---- arrays ----------------------------------------------------------------------------------------------------------


@cache
def _archives() -> list[bytes]:
    archive, packed = io.BytesIO(), io.BytesIO()
    given: dict[str, Any] = {"A": np.arange(8, dtype=np.float32), "n": np.int32(3)}
    np.savez(archive, **given)
    np.savez_compressed(packed, **given)
    return [archive.getvalue(), packed.getvalue()]


def _use_archive(data: bytes) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        path.write_bytes(data)
        try:
            assert parse_arguments([f"{path}:A", f"{path}:n"])
        except CompileError as error:
            return refused(error, None)
    return True


FILES = {
    "target-builds": Subject(
        lambda: list(map(resources.target_text, resources.target_names())), toml_mutant, _read(_compile_for)
    ),
    "archives": Subject(_archives, _of_bytes, _use_archive),
    "measurements": Subject(_measurements, mutated_json, _read(_use_measurement)),
    "measurement-trees": Subject(_measurements, json_mutant, _read(_use_measurement)),
    "plans": Subject(_plans, json_mutant, _read(_use_plan)),
    "tuned": Subject(_tuned_files, mutated_json, _read(_use_tuned)),
    "tuned-trees": Subject(_tuned_files, json_mutant, _read(_use_tuned)),
    "spaces": Subject(lambda: _SPACE_FILES, mutated, _read(_use_space)),
    "space-trees": Subject(lambda: _SPACE_FILES, toml_mutant, _read(_use_space)),
    "journals": Subject(_journals, _of_bytes, _use_journal),
    "journal-rows": Subject(_rows, json_mutant, _read(_use_rows)),
    "comparisons": Subject(lambda: [_schedule()], json_mutant, _read(_use_compared)),
    "solutions": Subject(lambda: [json.dumps(solution_to_json(_solved()[1]))], json_mutant, _use_solution),
}
