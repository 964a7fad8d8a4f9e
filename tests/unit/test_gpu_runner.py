"""benchmarks/gpu.py without a GPU: with a kernel of ours in place of the driver's it tells right from wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402
import gpu_cases  # noqa: E402

ABSENT = ("lark", "ortools", "click", "rich", "torch", "triton", "ml_dtypes")


def test_needs_no_compiler() -> None:
    lines = [f"sys.modules[{name!r}] = None" for name in ABSENT]
    program = "\n".join(["import sys", *lines, f"sys.path.insert(0, {str(BENCHMARKS)!r})", "import gpu"])
    subprocess.run([sys.executable, "-c", program], check=True)


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
    gpu_cases.write(made, "sample softmax")
    return made


def case_of(folder: Path) -> gpu.Case:
    (case,) = (gpu.Case(**entry) for entry in json.loads((folder / "cases.json").read_text()))
    return case


@pytest.mark.parametrize(("change", "says"), [(0.0, ""), (0.5, "Y: 1 of"), (float("nan"), "Y: 1 of")])
def test_tells_right_from_wrong(folder: Path, change: float, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(folder)
    with np.load(folder / f"{case.file}.npz") as held:
        wanted = held["out_Y"].copy()
    wanted[1, 2] += change
    Stand.results = {"Y": wanted}
    monkeypatch.setattr(gpu.runtime, "Kernel", Stand)
    fault = gpu.sample_fault(folder, case)
    assert fault.startswith(says) and bool(fault) == bool(says)


def test_an_output_that_nobody_wrote_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Stand.results = {}
    monkeypatch.setattr(gpu.runtime, "Kernel", Stand)
    assert gpu.sample_fault(folder, case_of(folder))


def test_a_cubin_of_another_build_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not the one"):
        gpu.loaded(folder, case_of(folder).of(sha256="0"))


def test_table() -> None:
    case = gpu.Case("bfloat16 1024×1024×1024", "matmul", "x", (1024, 1024, 1024), "bfloat16", "bfloat16")
    times = {"tilec": gpu.summary([0.01] * 8 + [0.02] * 2), "cuBLAS": gpu.Timing(0.02, 0.02, 0.02)}
    line = gpu.table([(case, times)])[1].split()
    assert line[2:] == ["214.7", "107.4", "–", "2.00", "100.0%", "±50.0%"]


def test_every_product_is_of_a_kernel_that_there_is() -> None:
    found = list(gpu_cases.products())
    assert len({case.name for case, *_ in found}) == len(found)
    assert {kernel for _, kernel, _, _ in found} == {path.stem for path in gpu_cases.KERNELS.glob("matmul*.tl")}
