"""The trace of a real compilation: by its schema, by the rules of the Chrome trace event format, and read back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

import tilec.sched
from tilec.cli.main import main
from tilec.driver import build as driver
from tilec.sched.decision import Decider
from tilec.sched.heuristics.heuristic import ARMS
from tilec.sched.lower_bounds.bounds import BoundKind
from tilec.sched.solution import LEVELS
from tilec.sched.trace import SCHEMA
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GEMM = ROOT / "samples" / "gemm.tl"
FLASH = ROOT / "samples" / "flash_attention.tl"
TEXT = (Path(tilec.sched.__file__).parent / "trace.schema.json").read_text(encoding="utf-8")
VALIDATOR = jsonschema.Draft202012Validator(json.loads(TEXT))

CASES: list[tuple[Path, str, Strategy, str]] = [
    (GEMM, "sm_90a", "auto", "silicon"),
    (GEMM, "sm_90a", "unspecialize", "silicon"),
    (GEMM, "sm_90a", "auto", "book"),
    (GEMM, "sm_80", "auto", "silicon"),
    (TESTS / "kernels" / "attention.tl", "sm_90a", "auto", "silicon"),
    (FLASH, "sm_90a", "auto", "silicon"),
    (TESTS / "kernels" / "manual.tl", "sm_90a", "auto", "silicon"),
    (TESTS / "kernels" / "nested_attention.tl", "sm_80", "auto", "silicon"),
    (TESTS / "kernels" / "nested_gemm.tl", "sm_90a", "auto", "silicon"),
    (ROOT / "samples" / "softmax.tl", "sm_90a", "auto", "silicon"),
    (ROOT / "samples" / "gemm" / "pipeline_objects.tl", "sm_90a", "auto", "silicon"),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].stem}-{c[1]}-{c[2]}-{c[3]}")


def trace_of(case: tuple[Path, str, Strategy, str]) -> dict[str, Any]:
    path, target, strategy, calibration = case
    options = CompileOptions(target=target, pipeline_strategy=strategy, calibration=calibration)
    plan = driver.plan_kernel(SourceFile(path.name, path.read_text()), options, driver.Observer())
    value: dict[str, Any] = json.loads(plan.trace)
    return value


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(TEXT))
    assert json.loads(TEXT)["properties"]["tilec"]["properties"]["schema"] == {"const": SCHEMA}


@pytest.mark.some(3)
@cases
def test_a_trace_fits_the_schema(case: tuple[Path, str, Strategy, str]) -> None:
    trace = trace_of(case)
    VALIDATOR.validate(trace)
    assert (trace["tilec"]["target"], trace["tilec"]["calibration"]) == (case[1], case[3])


def test_the_schema_knows_every_name_and_no_other() -> None:
    """Each object that lists members allows these alone, and each enumeration is the one of the code."""

    def objects(value: Any) -> Iterator[dict[str, Any]]:
        for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from objects(member)
        if isinstance(value, dict) and value.get("type") == "object" and isinstance(value.get("properties"), dict):
            yield value

    schema = json.loads(TEXT)
    assert all(found["additionalProperties"] is False for found in objects(schema))
    record = schema["properties"]["tilec"]["properties"]
    assert record["decisions"]["items"]["properties"]["by"]["enum"] == list(get_args(Decider))
    loop = record["loops"]["items"]["properties"]
    assert loop["objectives"]["items"]["properties"]["name"]["enum"] == list(LEVELS)
    assert loop["heuristics"]["items"]["properties"]["arm"]["enum"] == list(ARMS)
    assert loop["bounds"]["items"]["properties"]["kind"]["enum"] == list(get_args(BoundKind))
    assert loop["attempts"]["items"]["properties"]["how"]["enum"] == ["bound", "solver", "heuristic", "serial"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tilec", "calibration"), None),
        (("tilec", "decisions", 0, "by"), "a friend"),
        (("tilec", "loops", 0, "ii"), "512"),
        (("tilec", "loops", 0, "ops", 0, "start"), -1),
        (("tilec", "loops", 0, "rings", 0, "depth"), 0),
        (("tilec", "loops", 0, "status"), "good"),
        (("tilec", "loops", 0, "edges", 0, "slack"), -1),
        (("traceEvents", 9, "dur"), 0),
        (("traceEvents", 0, "ph"), "Z"),
        (("other",), 1),
        (("tilec", "loops", 0, "other"), 1),
        (("tilec", "loops", 0, "attempts", 0, "effort"), None),
        (("tilec", "loops", 0, "attempts", 0, "how"), "luck"),
        (("tilec", "loops", 0, "bounds", 0, "kind"), "mood"),
        (("tilec", "loops", 0, "heuristics", 0, "other"), 1),
        (("tilec", "loops", 0, "roofline", "other"), 1),
        (("tilec", "loops", 0, "edges", 0, "hand_over"), -1),
        (("traceEvents", 0, "args", "other"), 1),
    ],
)
def test_the_schema_refuses(path: tuple[str | int, ...], value: object) -> None:
    trace: Any = trace_of(CASES[0])
    at = trace
    if path == ("traceEvents", 9, "dur"):
        path = ("traceEvents", next(i for i, e in enumerate(trace["traceEvents"]) if e["ph"] == "X"), "dur")
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(trace)


@pytest.mark.some(3)
@cases
def test_viewers_can_read_the_events(case: tuple[Path, str, Strategy, str]) -> None:
    """Complete events with a whole start and length on a named track; on one track they nest or do not meet."""
    trace = trace_of(case)
    assert next(iter(trace)) == "traceEvents"
    names: set[tuple[int, int]] = set()
    processes: set[int] = set()
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names.add((event["pid"], event["tid"]))
            elif event["name"] == "process_name":
                processes.add(event["pid"])
            continue
        tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    assert set(tracks) == names and {pid for pid, _ in tracks} == processes
    for slices in tracks.values():
        open_until: list[int] = []
        for start, negative in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - negative <= open_until[-1], "slices of a track overlap without nesting"
            open_until.append(start - negative)


@pytest.mark.some(3)
@cases
def test_a_trace_is_read_back(case: tuple[Path, str, Strategy, str]) -> None:
    path, target, strategy, calibration = case
    source = SourceFile(path.name, path.read_text())
    options = CompileOptions(target=target, pipeline_strategy=strategy, calibration=calibration)
    first = driver.plan_kernel(source, options, driver.Observer())
    again = CompileOptions(target=target, pipeline_strategy=strategy, calibration=calibration, schedule=first.trace)
    second = driver.plan_kernel(source, again, driver.Observer())
    assert [p.solution.schedule.start for p in second.loops] == [p.solution.schedule.start for p in first.loops]
    assert {p.solution.schedule.status for p in second.loops} <= {"given"}


# ---- why not one cycle less ------------------------------------------------------------------------------------------


def test_the_refutation_names_families() -> None:
    """Bounds refute the GEMM at 511; with three versions what the rings leave of the time of a slot, at 631."""
    refutation = trace_of(CASES[0])["tilec"]["loops"][0]["refutation"]
    assert (refutation["ii"], refutation["how"]) == (511, "bound")
    assert refutation["families"] == [
        "slot tc_and_mma", "recurrence gemm A_shared, B_shared, C_local → gemm A_shared, B_shared, C_local",
    ]  # fmt: skip
    options = CompileOptions(defines=(("num_stages", 3),))
    plan = driver.plan_kernel(SourceFile("gemm.tl", GEMM.read_text()), options, driver.Observer())
    (loop,) = json.loads(plan.trace)["tilec"]["loops"]
    assert (loop["ii"], loop["refutation"]["ii"]) == (632, 631)
    assert loop["refutation"]["families"] == ["density tma"]


def test_how_far_groups_run_apart() -> None:
    """Each statement of the consumers is two ops, half an interval apart."""
    (loop,) = trace_of((FLASH, "sm_90a", "auto", "silicon"))["tilec"]["loops"]
    starts = [[loop["ops"][op]["start"] for op in of] for of in loop["copies"]]
    assert loop["lags"] == [0, loop["ii"] // 2]
    assert {second - first for first, second in starts} == {loop["ii"] // 2}
    named = {tuple(loop["ops"][op]["role"] for op in of) for of in loop["copies"]}
    assert named == {("consumer 1", "consumer 2")}


# ---- the drawings ----------------------------------------------------------------------------------------------------


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_elsewhere")
def test_the_terminal_shows_iterations_as_they_overlap(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", str(GEMM)]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert "II 511 is impossible because of: slot tc_and_mma, recurrence gemm" in "\n".join(shown)
    producers = [line for line in shown if line[1:].startswith(" producer ")]
    consumers = [line for line in shown if line[1:].startswith(" consumer ")]
    assert len(producers) == len(consumers) == 5, "three iterations in flight and two more"
    starts = [line.index("0", 10) for line in producers]
    assert starts == sorted(starts) and len(set(starts)) == 5
    # The product of an iteration runs under the loads of the one two later.
    assert producers[2].index("0", 10) < consumers[0].index("2", 10) < len(producers[2])
    colours = next(line for line in shown if line.startswith("colours are stages"))
    assert colours == "colours are stages: 0 1 2"
