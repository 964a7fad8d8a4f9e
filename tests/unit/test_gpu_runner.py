"""benchmarks/gpu.py without a GPU: stand-ins for a kernel, or for the process that runs it, and what it makes of it."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gpu
import gpu_cases
import gpu_child
import numpy as np
import pytest
from gpu_case import GROUPS, Case, cubins, read_cases, summary
from gpu_workloads import WORKLOADS

from tilec.ir.elements import encode_values

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ABSENT = ("lark", "ortools", "click", "rich", "torch", "triton", "ml_dtypes")


@pytest.mark.parametrize("module", ["gpu", "gpu_child", "gpu_variants", "gpu_suite"])
def test_needs_no_compiler(module: str) -> None:
    lines = [f"sys.modules[{name!r}] = None" for name in ABSENT]
    program = "\n".join(["import sys", *lines, f"sys.path.insert(0, {str(BENCHMARKS)!r})", f"import {module}"])
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- a sample --------------------------------------------------------------------------------------------------------


class Stand:
    """A kernel that writes what the test wants to be found."""

    results: ClassVar[dict[str, Any]] = {}

    def __init__(self, cubin: bytes) -> None:
        assert cubin[:4] == b"\x7fELF"

    def run(self, tensors: dict[str, Any], scalars: dict[str, Any]) -> None:
        for name, array in self.results.items():
            tensors[name][...] = array

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("cases")
    gpu_cases.write(made, "sample softmax", seed=5)
    return made


@pytest.mark.parametrize(("change", "says"), [(0.0, ""), (0.5, "Y: 1 of"), (float("nan"), "Y: 1 of")])
def test_tells_right_from_wrong(folder: Path, change: float, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = read_cases(folder)
    with np.load(folder / case.arrays) as held:
        wanted = held["out_Y"].copy()
    wanted[1, 2] += change
    Stand.results = {"Y": wanted}
    monkeypatch.setattr(gpu_child.runtime, "Kernel", Stand)
    fault = gpu_child.sample_fault(folder, case)
    assert fault.startswith(says) and bool(fault) == bool(says)


@pytest.mark.filterwarnings("error")
def test_nan_and_infinity_are_compared_without_a_word() -> None:
    nan, inf = float("nan"), float("inf")
    wanted = np.array([nan, inf, -inf, 1.0, nan, 1.0, inf])
    assert gpu_child.different(np.array([nan, inf, -inf, 1.0, 2.0, nan, -inf]), wanted, 0.5) == 3
    assert gpu_child.different(np.array([1, 2, 200], np.uint8), np.array([1, 3, 3], np.uint8), 0) == 2
    case = Case("s", "samples", "sample", noise=0.1, steps=1)
    assert np.isnan(gpu_child._slack(case, gpu_child.TYPES_BY_NAME["float16"], np.full(3, nan))).all()


class Bytes:
    """A tensor of PyTorch's, which refuses to turn NaN and infinity into types of one byte."""

    def __init__(self, size: int) -> None:
        self.held, self.size, self.dtype = np.zeros(4 * size, np.uint8), size, SimpleNamespace(is_floating_point=True)

    def element_size(self) -> int:
        return self.size

    def view(self, dtype: str) -> Any:
        assert dtype == "uint8"
        return SimpleNamespace(fill_=lambda value: self.held.fill(value))

    def fill_(self, value: float) -> None:
        assert self.size > 1, "value cannot be converted without overflow"
        self.held.view(f"f{self.size}").fill(value)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_poison_fits_every_type(size: int) -> None:
    workload = object.__new__(WORKLOADS["copy"])
    workload.torch = SimpleNamespace(uint8="uint8")
    fillings = []
    for filling in (float("nan"), float("-inf")):
        tensor = Bytes(size)
        workload.poison({"Y": tensor}, filling)
        fillings.append(tensor.held.copy())
    assert (fillings[0] != fillings[1]).any() and all(filling.any() for filling in fillings)


def test_peaks_are_of_the_type_that_they_are_named_for() -> None:
    peaks = {plan.case.name: plan.case.parameters for plan in gpu_cases.plans() if plan.case.group == "peaks"}
    assert {peaks[f"peak {name}"]["out_dtype"] for name in ("float16", "bfloat16")} == {"float16", "bfloat16"}
    assert peaks["peak float16"]["dtype"] == peaks["peak float16"]["out_dtype"] == "float16"
    assert peaks["peak int8"]["out_dtype"] == "int32"


def test_an_output_that_nobody_wrote_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Stand.results = {}
    monkeypatch.setattr(gpu_child.runtime, "Kernel", Stand)
    assert gpu_child.sample_fault(folder, read_cases(folder)[0])


def test_another_seed_gives_other_inputs(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    gpu_cases.write(tmp_path, "sample softmax", 6, note=said.append)
    assert said == ["sample softmax"]
    inputs = []
    for place in (folder, tmp_path):
        with np.load(place / read_cases(place)[0].arrays) as held:
            inputs.append(held["in_X"].copy())
    assert (inputs[0] != inputs[1]).mean() > 0.9


def test_drawn_kernels_are_judged_by_what_each_element_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_child.runtime, "Kernel", Stand)
    cases = gpu_cases.write(tmp_path, "nothing", seed=5, drawn=4)
    assert cases and {case.kind for case in cases} == {"drawn"}
    for case in cases:
        with np.load(tmp_path / case.arrays) as held:
            means = {n.removeprefix("out_"): held[n] for n in held.files if n.startswith("out_")}
            allowed = {n: held[f"allowed_{n}"] for n in means}
        Stand.results = {n: encode_values(a, gpu_child.TYPES_BY_NAME[case.dtypes[n]]) for n, a in means.items()}
        assert gpu_child.sample_fault(tmp_path, case) == "", case.name
        # One element farther off than it may be, where one can be.
        for name, array in means.items():
            at = np.flatnonzero(np.isfinite(allowed[name]) & (np.abs(array) < 100))
            if array.dtype.kind != "f" or not at.size:
                continue
            array.flat[at[0]] += 1 + 2 * allowed[name].flat[at[0]]
            Stand.results[name] = encode_values(array, gpu_child.TYPES_BY_NAME[case.dtypes[name]])
            assert f"{name}: 1 of" in gpu_child.sample_fault(tmp_path, case), case.name


def test_what_a_drawn_kernel_only_reads_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_child.runtime, "Kernel", Stand)
    (case,) = read_cases(folder)
    with np.load(folder / case.arrays) as held:
        Stand.results = {"Y": held["out_Y"], "X": held["in_X"] + 1}
    assert gpu_child.sample_fault(folder, case) == ""
    assert gpu_child.sample_fault(folder, gpu_cases.replace(case, kind="drawn")).startswith("X: ")


def test_a_cubin_of_another_build_is_refused(folder: Path) -> None:
    (case,) = read_cases(folder)
    with pytest.raises(ValueError, match="is not the one"):
        cubins(folder, gpu_cases.replace(case, sha256=("0",)))


# ---- processes -------------------------------------------------------------------------------------------------------

PROCESS = """
import json, os, sys, time
sys.path.insert(0, {benchmarks!r})
from gpu_case import MARK
asked = json.load(sys.stdin)
def say(**what):
    print("noise of a kernel", MARK + json.dumps(what), sep="\\n", flush=True)
say(torch="2.0")
for name in asked["names"]:
    if name == "unborn":
        os._exit(3)
    say(begins=name)
    if name == "crashes":
        os._exit(139)
    if name == "hangs":
        time.sleep(60)
    if name == "loses":
        say(name=name, fault="GpuError: CUDA_ERROR_ILLEGAL_ADDRESS")
        os._exit(1)
    say(name=name, fault="", work=2e9, unit="TFLOP/s", ceiling="bfloat16",
        milliseconds=dict(tilec=dict(median=0.5, low=0.4, high=0.6)))
"""


class Lines(queue.Queue[str | None]):
    """What a process says. Whoever hangs need not be waited for; others have as long as a busy machine takes."""

    before: str | None = ""

    def get(self, block: bool = True, timeout: float | None = None) -> str | None:
        if '"begins": "hangs"' in (self.before or ""):
            raise queue.Empty
        self.before = super().get(timeout=600)
        return self.before


def record_of(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gpu.Record:
    child = tmp_path / "child.py"
    child.write_text(PROCESS.format(benchmarks=str(BENCHMARKS)))
    monkeypatch.setattr(gpu, "CHILD", child)
    monkeypatch.setattr(gpu.queue, "Queue", Lines)
    cases = [Case(name, "products", "matmul") for name in names]
    return gpu.Record({"repeat": 3, "seed": 1, "alone": False}, {}, cases, tmp_path / "results.json")


def test_one_fault_costs_nobody_else_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "crashes", "b", "loses", "c", "unborn", "hangs", "d"]
    record = record_of(names, tmp_path, monkeypatch)
    gpu.run_group(tmp_path, names, record, time.monotonic() + 6000, patience=2)
    assert record.missing() == []
    assert record.wrong() == {
        "crashes": "its process ended with code 139",
        "loses": "GpuError: CUDA_ERROR_ILLEGAL_ADDRESS",
        "unborn": "its process ended with code 3",
        "hangs": "its process said nothing for 2 s",
    }
    assert record.machine == {"torch": "2.0"}
    written = json.loads((tmp_path / "results.json").read_text())
    assert [case["name"] for case in written["cases"]] == names
    assert written["not_run"] == [] and written["seed"] == 1


def test_where_no_process_can_use_the_gpu_none_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(["a", "b"], tmp_path, monkeypatch)
    gpu.CHILD.write_text("import sys; sys.stdin.read(); sys.exit(1)")
    with pytest.raises(gpu.NoGpu, match="ended with code 1"):
        gpu.run_group(tmp_path, ["a", "b"], record, time.monotonic() + 60)
    assert record.missing() == ["a", "b"]


def test_the_budget_ends_it_and_what_is_known_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "hangs", "b"]
    record = record_of(names, tmp_path, monkeypatch)
    gpu.run_all(tmp_path, record, time.monotonic() + gpu.PATIENCE / 2, note=lambda line: None)
    assert record.wrong() == {} and record.missing() == ["hangs", "b"]
    assert json.loads((tmp_path / "results.json").read_text())["not_run"] == ["hangs", "b"]
    gpu.run_all(tmp_path, record, time.monotonic() - 1, note=lambda line: None)
    assert record.missing() == ["hangs", "b"]


def test_right_comes_before_fast() -> None:
    cases = [Case(group, group, "matmul") for group in reversed(GROUPS)]
    assert [case.name for case in gpu.ordered(cases)] == list(GROUPS)
    assert GROUPS[0] == "samples" and GROUPS.index("headlines") < GROUPS.index("ladder")


# ---- the table -------------------------------------------------------------------------------------------------------


def test_table() -> None:
    def timed(**medians: float) -> dict[str, Any]:
        return {name: {"median": ms, "low": 0.9 * ms, "high": 1.1 * ms} for name, ms in medians.items()}

    of_type = {"fault": "", "work": 2 * 1024**3, "unit": "TFLOP/s", "ceiling": "bfloat16"}
    results = {
        "sample a": {"fault": ""},
        "peak": {**of_type, "milliseconds": timed(cuBLAS=0.005)},
        "one": {**of_type, "milliseconds": timed(tilec=0.01, cuBLAS=0.02, Triton=0.04)},
        "broken": {"fault": "C: error 1.0", "work": 1, "unit": "TFLOP/s", "ceiling": "bfloat16"},
    }
    _, peak, one = gpu.table(results)
    assert peak.split() == ["peak", "–", "–", "–", "–", "cuBLAS", "429.5", "TFLOP/s"]
    assert one.split() == (["one", "214.7", "2.00", "50.0%", "10.0%", "cuBLAS", "107.4,", "Triton", "53.69", "TFLOP/s"])


def test_summary() -> None:
    timing = summary([float(i) for i in range(1, 51)])
    assert (timing.median, timing.low, timing.high) == (25.5, 6.0, 45.0)


# ---- the cases -------------------------------------------------------------------------------------------------------


def test_every_plan_is_of_a_kernel_and_of_a_workload_that_there_are() -> None:
    plans = list(gpu_cases.plans())
    assert len({plan.case.name for plan in plans}) == len(plans)
    for plan in plans:
        assert plan.case.group in GROUPS and plan.case.kind in WORKLOADS
        for kernel in plan.kernels:
            text = kernel.file.read_text()
            constants = {name for line in re.findall(r"^([\w, ]+) = ", text, re.M) for name in line.split(", ")}
            assert set(kernel.constants) <= constants, kernel.file
    used = {kernel.file.stem for plan in plans for kernel in plan.kernels}
    assert {path.stem for path in gpu_cases.KERNELS.glob("matmul*.tl")} <= used
    assert {plan.case.kind for plan in plans} == set(WORKLOADS)


def test_the_shapes_that_are_asked_for() -> None:
    names = {plan.case.name for plan in gpu_cases.plans()}
    for dtype in ("bfloat16", "float16"):
        for m, n, k in gpu_cases.SHAPES:
            assert f"{dtype} {m}×{n}×{k}" in names
    assert {"float8_e4m3fn 8192×8192×8192", "int8 8192×8192×8192"} <= names
    forward = {
        f"attention {d} {mask} {s}" for d in (64, 128) for mask in ("full", "causal") for s in (2048, 8192, 16384)
    }
    assert forward <= names
    eight_bits = {f"attention float8_e4m3fn 128 {mask} {s}" for mask in ("full", "causal") for s in (2048, 8192, 16384)}
    assert eight_bits <= names
    assert {"attention backward 128 causal 8192", "decode 32 heads 8192"} <= names
    assert {f"{name} 1 GiB" for name in ("softmax", "layernorm", "column_sum", "transpose", "chain")} <= names


def test_samples_are_those_that_the_tests_run() -> None:
    names = [name for name, _, _ in gpu_cases.samples()]
    assert len(set(names)) == len(names) and "sample gemm/cluster cluster_x=2 cluster_y=1" in names
