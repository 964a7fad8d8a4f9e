"""benchmarks/gpu_suite.py without a GPU: a folder of a few cases, with stand-ins for what runs them."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import gpu
import gpu_cases
import gpu_inputs
import gpu_suite
import gpu_variants
import pytest
from gpu_case import Case, read_cases

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REAL = json.loads(gpu_cases.REAL_SIZES.read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite of one workload with its alternatives, a kernel beside libraries and two drawn ones."""
    made: Path = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gpu_cases, "write_probes", lambda stage: (stage / "plan.json").write_text("{}"))
        patched.setattr(gpu_cases, "fingerprint", lambda *asked: repr(asked))
        said: list[str] = []
        sizes = gpu_cases.write_suite(made, "softmax [12]*", 5, 2, said.append)
        assert list(sizes) == [*gpu_suite.OF_CASES, "calibration"] and "drawn:" in said
        # Interrupted: what is there of the workloads is kept.
        mark = made / "workloads" / gpu_cases.MADE_OF
        mark.write_text(f"{mark.read_text()} so far")
        said.clear()
        assert gpu_cases.write_suite(made, "softmax [12]*", 6, 2, said.append) == sizes and said == ["workloads:"]
        # Once more: all of it is there already. With other sources, or another pattern, it is not.
        said.clear()
        assert gpu_cases.write_suite(made, "softmax [12]*", 6, 2, said.append) == sizes and said == []
        patched.setattr(gpu_cases, "write_samples", lambda *asked: iter(()))
        patched.setattr(gpu_cases, "fingerprint", lambda *asked: "other sources" if asked[0] else "")
        gpu_cases.write_suite(made / "other", "nothing", 5, 0, said.append)
        assert said == [f"{stage}:" for stage in sizes]
    return made


def test_the_suite_is_read_without_a_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_suite.main([str(folder), "--dry"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == list(gpu_suite.SECONDS)
    assert said[1].startswith("drawn: 2 cases, 2 kernels") and said[4].startswith("libraries: 1 cases, 1 kernels")
    (case,) = read_cases(folder / "workloads")
    assert case.parameters["labels"][0] == "as decided" and len(case.files) == len(set(case.files)) > 1


def test_a_file_of_another_build_is_found_without_a_gpu(folder: Path, tmp_path: Path) -> None:
    (case,) = read_cases(folder / "libraries")
    stage = tmp_path / "libraries"
    stage.mkdir()
    gpu_cases.index(stage, [case])
    (stage / f"{case.files[0]}.cubin.gz").write_bytes(gpu_cases.gzip.compress(b"other"))
    with pytest.raises(ValueError, match="is not the one"):
        gpu_suite.dry(tmp_path, ["libraries"], "*")


# ---- a run -----------------------------------------------------------------------------------------------------------

PROCESS = """
import json, os, sys
sys.path.insert(0, {benchmarks!r})
from pathlib import Path
from gpu_case import MARK, read_cases
asked = json.load(sys.stdin)
cases = {{case.name: case for case in read_cases(Path(asked["folder"]))}}
def say(**what):
    print(MARK + json.dumps(what), flush=True)
say(torch="2.0")
for name in asked["names"]:
    case, skipped = cases[name], asked["skipped"].get(name, {{}})
    say(begins=name)
    if case.kind == "drawn":
        say(name=name, fault="" if case.seed % 2 else "Y: 1 of 9 differ")
        continue
    found = dict(fault="", work=1e9, unit="TB/s", ceiling="copy")
    found["milliseconds"] = dict(tilec=dict(median=0.5, low=0.4, high=0.6))
    if case.kind == "variants":
        found["variants"] = {{label: dict(fault=why) for label, why in skipped.items()}}
        for at, label in enumerate(case.parameters["labels"]):
            if label not in skipped:
                say(begins=name, variant=label)
                if at == 1:
                    os._exit(139)
                found["variants"][label] = dict(fault="", us=500 - at)
    else:
        found["milliseconds"]["torch"] = dict(median=0.25, low=0.2, high=0.3)
    say(name=name, **found)
"""


def test_the_suite_runs_and_says_what_is_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With stand-ins for the processes that run cases and for Nsight Compute. The probes find no GPU, and say so."""
    child = tmp_path / "child.py"
    child.write_text(PROCESS.format(benchmarks=str(BENCHMARKS)))
    monkeypatch.setattr(gpu, "CHILD", child)
    ncu = tmp_path / "bin" / "ncu"
    ncu.parent.mkdir()
    ncu.write_text(
        f"#!{sys.executable}\nimport sys\nprint('no permission' if '1 GiB' in sys.argv[-1] else '\"ID\",\"Name\"')"
    )
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(ncu.parent), prepend=":")
    before = tmp_path / "before"
    before.mkdir()
    was = {"name": "softmax 1 GiB", "fault": "wrong then", "milliseconds": {"tilec": {"median": 0.25}}}
    old = {"machine": {"date": "2026-01-02", "name": "H"}, "cases": [was]}
    (before / "libraries.json").write_text(json.dumps(old))
    out = tmp_path / "out"
    assert gpu_suite.main([str(folder), "--out", str(out), "--against", str(before)]) == 1
    said = capsys.readouterr().out
    text = (out / "page.txt").read_text()
    assert said.endswith(text) and len(text.splitlines()) < 60
    (workload,) = (case for case in json.loads((out / "workloads.json").read_text())["cases"])
    label = read_cases(folder / "workloads")[0].parameters["labels"][1]
    assert f"WRONG {workload['name']}, {label}: its process ended with code 139" in text
    assert workload["fault"] == "" and set(workload["variants"]) == set(
        read_cases(folder / "workloads")[0].parameters["labels"]
    )
    wrong = [case.name for case in read_cases(folder / "drawn") if case.seed % 2 == 0]
    assert all(f"WRONG {name}: Y: 1 of 9 differ" in text for name in wrong)
    assert f"drawn: {2 - len(wrong)} of 2 right" in text
    assert (
        "softmax 1 GiB: right now, was wrong" in text and "softmax 1 GiB: 250 µs → 500 µs, 2.00 times the time" in text
    )
    assert "softmax 1 GiB: 2.00 times as long as torch" in text
    assert "no profile of softmax 1 GiB: no permission" in text
    assert [file.name for file in (out / "profiles").iterdir()] == [f"{gpu_suite.file_name(workload['name'])}.csv"]
    assert "error[no-gpu]" in text


def test_a_stage_stops_when_its_seconds_are_over(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text('import sys, time; sys.stdin.read(); print(\'@gpu {"torch": "2"}\', flush=True); time.sleep(60)')
    monkeypatch.setattr(gpu, "CHILD", child)
    out = tmp_path / "out"
    only = ["--only", "drawn", "libraries", "--seconds", "1"]
    assert gpu_suite.main([str(folder), "--out", str(out), *only]) == 1
    assert "drawn: 2 not run for want of time" in (out / "page.txt").read_text()
    assert json.loads((out / "libraries.json").read_text())["not_run"] == ["softmax 1 GiB"]


# ---- what is prepared ------------------------------------------------------------------------------------------------


def test_every_alternative_is_an_option_of_the_command() -> None:
    labels = {label.removesuffix(" (as decided)") for one in REAL for label in one["variants"]}
    for label in labels - {"as decided", "as decided, again"}:
        assert gpu_cases.options_of(label, {}) != gpu_cases.options_of("", {}), label
    asked = gpu_cases.options_of("--cluster 2x1 --no-persistent num_stages=3 -O2", {"M": 64})
    assert (asked.cluster, asked.persistent, asked.opt_level) == ((2, 1, 1), False, 2)
    assert asked.defines == (("M", 64), ("num_stages", 3)) and asked.target == "sm_90a"


def test_every_recipe_is_of_a_tensor_and_can_be_followed() -> None:
    known = set(re.findall(r'"(\w+)"', "".join(re.findall(r"case (.*):", inspect.getsource(gpu_variants.made)))))
    for one in REAL:
        text = (gpu_cases.ROOT / one["kernel"]).read_text(encoding="utf-8")
        for name, recipe in gpu_inputs.recipes(one["kernel"], one["constants"]).items():
            assert re.search(rf"\b{name}: T\.(Tensor|StridedTensor)", text), (one["name"], name)
            assert recipe["make"] in known, recipe


def test_parts_hold_no_more_than_is_carried_at_a_time() -> None:
    sizes = {"samples": 20, "drawn": 30, "workloads": 10, "libraries": 1, "calibration": 1}
    assert gpu_cases.parts(sizes, 62) == [list(sizes)]
    assert gpu_cases.parts(sizes, 55) == [["samples", "drawn"], ["workloads", "libraries", "calibration"]]


def test_the_worst_are_those_that_something_else_beats() -> None:
    def case(name: str, **others: float) -> dict[str, Any]:
        times = {"tilec": {"median": 1.0}, **{one: {"median": ms} for one, ms in others.items()}}
        return {"name": name, "group": "products", "fault": "", "milliseconds": times}

    slow = {
        **case("slow"),
        "variants": {"--no-pdl": {"us": 400.0, "fault": ""}, "-O2": {"us": 100.0, "fault": "C differs"}},
    }
    serial = {**case("ladder 1: a serial loop", cuBLAS=0.1), "group": "ladder"}
    results = {
        "libraries": {"cases": [case("even", cuBLAS=1.0), case("lost", cuBLAS=0.8), serial]},
        "workloads": {"cases": [slow]},
    }
    assert gpu_suite.worst(results) == ["slow", "lost", "even"]
    assert gpu_suite.behind(slow) == (2.5, "--no-pdl")
    assert gpu_suite.ranking(results) == ["slow: 2.50 times as long as --no-pdl", "lost: 1.25 times as long as cuBLAS"]


def test_more_than_a_page_is_counted() -> None:
    assert len(gpu_suite.section("wrong", [f"WRONG {i}" for i in range(100)])) == gpu_suite.LINES + 2


def test_budgets_are_twelve_minutes() -> None:
    assert sum(gpu_suite.SECONDS.values()) <= 720
    assert Case("x", "workloads", "variants").group in gpu.GROUPS
