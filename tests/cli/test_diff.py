"""`tilec diff`: what it says of real traces, and which files it refuses."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import GEMM, tilec

PRODUCT = "gemm A_shared, B_shared, C_local"

GIVEN = {
    "plain": [],
    "thin": ["-D", "block_K=32"],
    "wide": ["-D", "block_N=256"],
    "shallow": ["-D", "num_stages=3"],
    "old": ["--target", "sm_80", "--register-stages", "1"],  # the same statements
    "alike": ["--pipeline-strategy", "unspecialize"],
    "book": ["--calibration", "book"],
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The trace of the GEMM compiled with these options."""
    folder = tmp_path_factory.mktemp("traces")

    def trace(name: str) -> str:
        path = folder / f"{name}.json"
        if not path.exists():
            assert tilec(GEMM, *GIVEN[name], "--emit", "schedule", "-o", str(path)) == 0
        return str(path)

    return trace


Compared = Callable[..., tuple[int, str]]


@pytest.fixture
def compared(traces: Callable[[str], str], capfd: pytest.CaptureFixture[str]) -> Compared:
    """The exit code for two of the traces, or of other files, and what is said."""

    def run(old: str, new: str, *options: str) -> tuple[int, str]:
        paths = [traces(name) if name in GIVEN else name for name in (old, new)]
        capfd.readouterr()
        code = tilec("diff", *paths, *options)
        said = capfd.readouterr()
        return code, said.out + " ".join(said.err.split())

    return run


def changed(name: str, path: str, change: Callable[[dict[str, Any]], object]) -> str:
    """A trace with a change by hand, as a file here."""
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    change(value)
    Path(name).write_text(json.dumps(value), encoding="utf-8")
    return name


def steps(said: str) -> list[str]:
    """What is said after `because:`."""
    return [line.strip() for line in said.partition("  because:\n")[2].partition("\n\n")[0].splitlines()]


def test_nothing_changed(compared: Compared, traces: Callable[[str], str]) -> None:
    assert compared("plain", "plain") == (0, "the schedules are the same\n")
    code, said = compared("plain", "plain", "--format", "json")
    assert code == 0 and json.loads(said) == {"equal": True, "changes": [], "why": []}

    def moved(trace: dict[str, Any]) -> None:
        for op in trace["tilec"]["loops"][0]["ops"]:
            op["line"] += 7

    assert compared("plain", changed("moved.json", traces("plain"), moved))[0] == 0, "lines are no part of a schedule"


def test_larger_tiles_move_the_bound(compared: Compared) -> None:
    code, said = compared("thin", "plain")
    assert code == 1
    recurrence = f"{PRODUCT} → {PRODUCT}"
    assert steps(said) == [
        "-D block_K is the kernel's own, was 32",
        "tile A_shared is float16 128 × 64, was float16 128 × 32",
        "tile B_shared is float16 64 × 128, was float16 32 × 128",
        "copy A → A_shared: its time in tma is 128, was 64",
        "copy B → B_shared: its time in tma is 128, was 64",
        f"{PRODUCT}: its time in tc_and_mma is 512, was 256",
        f"{PRODUCT}: its latency is 584, was 328",
        f"the binding bounds are slot tc_and_mma, recurrence {recurrence}, was density tma",
        f"slot tc_and_mma: slot tc_and_mma is held 512 cycles an iteration: 512 {PRODUCT}",
        f"recurrence {recurrence}: {recurrence} takes 512 cycles over 1 iteration",
        "the interval is 512, was 378",
    ]
    document = (Path(__file__).parents[2] / "docs" / "trace.md").read_text(encoding="utf-8")
    shown = document.partition("with `-D block_K=32` and as it stands:\n\n```text\n")[2].partition("```")[0]
    parts = [re.escape(part) for part in shown.split("…\n")]
    assert shown and re.fullmatch("(.*\n)*".join(parts), "\n".join([*steps(said), ""]))
    assert "  the occupancy of tp_gnic_rd is 60%, was 40%\n" in said


def test_wider_tiles_take_fewer_stages(compared: Compared) -> None:
    _, said = compared("plain", "wide")
    assert steps(said)[-1] == "the interval is 1,024, was 512"
    for sentence in (
        "copy B → B_shared: its time in tp_gnic_rd is 612, was 306",
        "the number of stages is 2, was 3",
        f"{PRODUCT} is in stage 1, was 2",
        "the bytes of a version of ring A_shared+B_shared is 49,152, was 32,768",
        "the peak of pool smem is 197,632 of 232,448, was 132,096 of 232,448",
        "the occupancy of tp_gnic_rd is 45%, was 60%",
    ):
        assert f"  {sentence}\n" in said


def test_the_other_way_round(compared: Compared) -> None:
    code, said = compared("wide", "plain")
    assert code == 1 and "-D block_N is the kernel's own, was 256" in said
    assert steps(said)[-1] == "the interval is 512, was 1,024"
    assert f"{PRODUCT}: its time in tc_and_mma is 512, was 1,024" in steps(said)


def test_fewer_versions_are_why_the_interval_grows(compared: Compared) -> None:
    _, said = compared("plain", "shallow")
    why = steps(said)
    assert why[:2] == [
        "-D num_stages is 3, was the kernel's own",
        "the depth limit of ring A_shared+B_shared is 3, was 4",
    ]
    assert why[2].startswith("the binding bounds are density tma, was slot tc_and_mma, recurrence ")
    assert why[3].startswith("density tma: ") and why[-1] == "the interval is 632, was 512"
    assert "its time in" not in said and "tile " not in said
    assert "the depth of ring A_shared+B_shared is 3, was 4" in said
    assert "the order is copy A → A_shared; gemm A_shared, B_shared, C_local; copy B → B_shared, was" in said


def test_another_machine_and_other_numbers_for_it(compared: Compared) -> None:
    _, said = compared("plain", "old")
    assert steps(said)[0] == "the target is sm_80, was sm_90a"
    assert f"{PRODUCT}: its time in tc_and_mma is 1,024, was 512" in steps(said)
    assert steps(said)[-1] == "the interval is 1,504, was 512"
    assert f"{PRODUCT} is run by all, was consumer" in said
    _, said = compared("plain", "book")
    assert steps(said)[0] == "the calibration is book, was silicon"
    assert steps(said)[-1] == "the interval is 16, was 512"


def test_other_roles_at_the_same_interval(compared: Compared) -> None:
    code, said = compared("plain", "alike")
    assert code == 1 and "the interval" not in said and "because:" not in said
    assert "option pipeline-strategy is unspecialize, was the default" in said
    assert (
        "the decision about roles is all warps alike (by the command line: --pipeline-strategy unspecialize), "
        "was producer, consumer\n"
    ) in said
    assert "the decision about consumer warpgroups removed (it was 2 warpgroups)" in said


def test_what_nobody_asked_for(compared: Compared, traces: Callable[[str], str]) -> None:
    def slower(trace: dict[str, Any]) -> None:
        loop = trace["tilec"]["loops"][0]
        loop["ii"], loop["mii"] = 600, 512
        loop["refutation"] = {"ii": 599, "how": "solver", "families": [], "why": "no room"}

    _, said = compared("plain", changed("slower.json", traces("plain"), slower))
    assert steps(said) == [
        "the requests are equal: the kernel's statements, the target file or tilec changed",
        "II 599 is impossible: no room",
        "the interval is 600, was 512",
    ]


def test_statements_and_loops_that_come_and_go(compared: Compared, traces: Callable[[str], str]) -> None:
    def more(trace: dict[str, Any]) -> None:
        (loop,) = trace["tilec"]["loops"]
        loop["ops"].append({**copy.deepcopy(loop["ops"][2]), "id": 3})
        loop["order"].append(3)
        trace["tilec"]["loops"].append({**copy.deepcopy(loop), "name": "gemm.other"})

    longer = changed("longer.json", traces("plain"), more)
    _, said = compared("plain", longer)
    assert f"  {PRODUCT} (2) is scheduled (new)\n" in said
    assert "gemm.other:\n  the loop has II 512 and 3 stages (new)\n" in said
    _, said = compared(longer, "plain")
    assert f"  {PRODUCT} (2) removed (it was scheduled)\n" in said
    assert "gemm.other:\n  the loop removed (it had II 512 and 3 stages)\n" in said


def test_traces_of_before(compared: Compared, traces: Callable[[str], str]) -> None:
    """Of the time when they did not say what was asked for."""

    def older(trace: dict[str, Any]) -> None:
        for name in ("constants", "options", "threads", "tiles"):
            del trace["tilec"][name]

    before = changed("before.json", traces("plain"), older)
    assert compared(before, "plain")[0] == 0
    assert "tile " not in compared(before, "wide")[1]


def test_decisions_that_had_another_name(compared: Compared, traces: Callable[[str], str]) -> None:
    def older(trace: dict[str, Any]) -> None:
        once = {"consumer warpgroups": "consumers", "programmatic dependent launch": "dependent launch"}
        for decision in trace["tilec"]["decisions"]:
            decision["what"] = once.get(decision["what"], decision["what"])

    before = changed("before.json", traces("plain"), older)
    assert compared(before, "plain")[0] == 0
    said = compared(before, "alike")[1]
    assert "the decision about consumer warpgroups removed (it was 2 warpgroups)" in said


def test_json(compared: Compared) -> None:
    code, said = compared("plain", "wide", "--format", "json")
    record = json.loads(said)
    assert code == 1 and not record["equal"]
    (interval,) = (c for c in record["changes"] if c["subject"] == "the interval")
    assert interval == {
        "kind": "interval", "loop": "gemm.ko", "subject": "the interval", "old": "512", "new": "1,024",
        "text": "the interval is 1,024, was 512",
    }  # fmt: skip
    ((loop, why),) = ((one["loop"], one["steps"]) for one in record["why"])
    assert loop == "gemm.ko" and why[-1] == interval["text"]


def without(*path: str | int) -> Callable[[dict[str, Any]], object]:
    def change(trace: dict[str, Any]) -> None:
        inner: Any = trace
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


def put(value: object, *path: str | int) -> Callable[[dict[str, Any]], object]:
    def change(trace: dict[str, Any]) -> None:
        inner: Any = trace
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


LOOP: tuple[str | int, ...] = ("tilec", "loops", 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("tilec"), "compared: 'tilec' is missing"),
        (put(2, "tilec", "schema"), "schema is 2, this version reads 1"),
        (put([], "tilec"), "tilec: expected an object or table, found []"),
        (put(7, "tilec", "target"), "tilec.target: expected a string, found 7"),
        (put({"M": 1}, "tilec", "constants"), "tilec.constants.M: expected a string, found 1"),
        (put("many", "tilec", "threads"), "tilec.threads: expected a whole number, found 'many'"),
        (put(3, "tilec", "tiles"), "tilec.tiles: expected an array, found 3"),
        (put(None, "tilec", "decisions", 0), "tilec.decisions[0]: expected an object or table, found None"),
        (put(True, *LOOP, "ii"), "tilec.loops[0].ii: expected a whole number, found True"),
        (put([9], *LOOP, "order"), "tilec.loops[0]: [9] names statements that do not exist"),
        (
            put([[1]], *LOOP, "ops", 1, "rows", 0, "rows"),
            "loops[0].ops[1].rows[0].rows[0]: expected an array of 2",
        ),
        (without(*LOOP, "rings", 0, "depth"), "tilec.loops[0].rings[0]: 'depth' is missing"),
        (
            put("4", *LOOP, "rings", 0, "max_depth"),
            "loops[0].rings[0].max_depth: expected a whole number, found '4'",
        ),
        (put([{}], *LOOP, "refutation"), "tilec.loops[0].refutation: expected an object or table, found [{}]"),
        (put([-1], *LOOP, "bounds", 0, "ops"), "tilec.loops[0]: [-1] names statements that do not exist"),
    ],
)
def test_damaged_traces(
    change: Callable[[dict[str, Any]], object], says: str, compared: Compared, traces: Callable[[str], str]
) -> None:
    damaged = changed("damaged.json", traces("plain"), change)
    for pair in ((damaged, "plain"), ("plain", damaged)):
        code, said = compared(*pair)
        assert code == 2 and "error[bad-trace]: damaged.json is not a schedule trace that can be compared: " in said
        assert says in said and "Traceback" not in said


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "NaN", "\x00", '{"tilec": {}}', '"trace"'])
def test_what_is_no_trace(text: str, compared: Compared) -> None:
    Path("foreign.json").write_text(text)
    code, said = compared("foreign.json", "plain")
    assert code == 2 and "bad-trace" in said and "Traceback" not in said and "internal error" not in said


def test_trouble_with_files(compared: Compared) -> None:
    assert compared("absent.json", "plain")[0] == 2
    assert tilec("diff", "one.json") == 2
    assert tilec("diff", "a", "b", "--format", "xml") == 2
