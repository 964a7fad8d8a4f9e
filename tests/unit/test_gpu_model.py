"""benchmarks/model.py: predictions follow from the schedule, and errors from made-up measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_cases
import model
import pytest

from tilec.target.table import load

SMS = load("sm_90a").limit("sms")
GEMM = {"M": 1024, "N": 1024, "K": 512, "block_M": 128, "block_N": 128}


def matmul(**more: Any) -> gpu_cases.Kernel:
    """Each block on its own, whatever the compiler would decide."""
    options = {"cluster": (1, 1, 1), **more.pop("options", {})}
    return gpu_cases.Kernel(gpu_cases.KERNELS / "matmul.tl", {**GEMM, **more}, options)


def test_a_longer_loop_takes_an_interval_more_for_each_iteration() -> None:
    (short, _), (long, _) = model.of_kernel(matmul()), model.of_kernel(matmul(K=1024))
    # 64 blocks are one wave; 8 iterations more of 4 m64n128k16 products in each of 2 warpgroups, 64 cycles each.
    assert long - short == 8 * 512


def test_waves_follow_one_another() -> None:
    (one, _), (two, _) = (model.of_kernel(matmul(M=128 * m, options={"persistent": False})) for m in (16, 33))
    assert 128 * 16 // 128 * 8 <= SMS < 33 * 8 <= 2 * SMS
    assert two in range(one, 2 * one + 1)  # as far as two share a multiprocessor, they overlap


def test_memory_counts_every_tensor_once_and_every_load() -> None:
    _, memory = model.of_kernel(matmul())
    loaded, moved = 64 * 8 * 2 * 128 * 64 * 2, 2 * (2 * 1024 * 512 + 1024 * 1024)
    target = load("sm_90a")
    assert memory == max(
        -(-loaded // target.limit("l2_bytes_per_cycle")), -(-moved // target.limit("dram_bytes_per_cycle"))
    )


def test_blocks_that_load_together_ask_for_less() -> None:
    sizes = {"M": 1024, "N": 1024, "K": 512, "cluster_x": 2, "cluster_y": 1}
    kernels = [
        gpu_cases.Kernel(gpu_cases.FOLDER / "gemm" / "cluster.tl", sizes, {"multicast": multicast})
        for multicast in (False, True)
    ]
    (_, apart), (_, together) = (model.of_kernel(kernel) for kernel in kernels)
    assert together < apart


def test_a_block_on_the_diagonal_has_less_to_do() -> None:
    sizes = {"S": 1024, "heads": 2, "D": 64, "causal": True}
    causal = gpu_cases.Kernel(gpu_cases.FOLDER / "flash_attention.tl", sizes)
    full = gpu_cases.Kernel(gpu_cases.FOLDER / "flash_attention.tl", {**sizes, "causal": False})
    assert model.of_kernel(causal)[1] < model.of_kernel(full)[1]


MADE_UP = {
    "cases": [
        {"name": "a", "fault": "", "sm_mhz": 2000, "milliseconds": {"tilec": {"median": 1.0}}},
        {"name": "b", "fault": "", "milliseconds": {"tilec": {"median": 2.0}, "cuBLAS": {"median": 1.0}}},
        {"name": "wrong", "fault": "C: error 1.0", "milliseconds": {"tilec": {"median": 1.0}}},
        {"name": "peak", "fault": "", "milliseconds": {"cuBLAS": {"median": 1.0}}},
    ]
}


def test_errors_are_relative_to_what_was_measured() -> None:
    measured = model.measured_cycles(MADE_UP, mhz=1000)
    assert measured == {"a": 2_000_000, "b": 2_000_000}
    cycles = {("a", "matmul"): 1_500_000, ("b", "softmax"): 2_200_000, ("c", "softmax"): 1}
    predicted = [model.Prediction(*names, 0, 0, value) for names, value in cycles.items()]
    assert model.errors(predicted, measured) == pytest.approx({"a": -0.25, "b": 0.1})
    lines = model.table(predicted, measured, mhz=1000)
    assert lines[1].split()[-2:] == ["2,000,000", "-25.0%"]
    assert lines[3].endswith("not measured")
    assert [line.split() for line in lines[4:]] == [
        ["mean", "absolute", "error"],
        ["matmul", "25.0%", "over", "1"],
        ["softmax", "10.0%", "over", "1"],
        ["all", "17.5%", "over", "2"],
    ]


def test_without_results_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(model.__file__)), "--only", "bfloat16 512*", "--json", str(tmp_path / "m.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bfloat16 512×3072×768" in done.stdout and done.stdout.splitlines()[-1].startswith("not measured: ")
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["errors"] == {} and len(record["predicted"]) == 1
