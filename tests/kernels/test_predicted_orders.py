"""Of two forms of a kernel, the model predicts the one to be faster that an H200 measured to be faster; and how long
kernels take whose machine code counts.

Measured ratios are of benchmarks/results/h200-2026-11-27/workloads.json; `benchmarks/regret.py` compares all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver.build import Observer, build_kernel, build_report
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
SWIGLU = ("gemm/swiglu", {"M": 4096, "N": 14336, "K": 4096})
ATTENTION = ("flash_attention", {"batch": 2, "heads": 16, "S": 8192, "D": 128})
FORMS = [
    (SWIGLU, {"rasterisation": 0}, 1.30),  # each wave reads all of the wide matrices again
    (("gemm", {"M": 8192, "N": 8192, "K": 8192, "block_N": 256}), {"rasterisation": 0}, 1.10),
    (ATTENTION, {"split_loops": False}, 1.13),  # a mask in every iteration
    (ATTENTION, {"ping_pong": False}, 1.10),
    (ATTENTION, {"overlap": False}, 1.08),
    (("attention/backward_dq", {"batch": 1, "heads": 16, "S": 8192, "D": 128}), {"rasterisation": 0}, 1.11),
    # Longer as one block fewer of a multiprocessor than iterations that overlap save.
    (("models/mamba_chunk_scan", {"batch": 4, "chunks": 32, "heads": 64}), {"pipeline_strategy": "unspecialize"}, 1.17),
    (("rows/rmsnorm", {"M": 65536, "N": 4096}), {"pipeline_strategy": "none"}, 1.36),  # fewer bytes in flight
    (("softmax", {"M": 262144, "N": 1024}), {"cluster": (2, 1, 1)}, 1.14),  # short blocks that wait for each other
]


@pytest.mark.parametrize(("kernel", "options", "measured"), FORMS)
def test_forms_are_predicted_in_their_order(
    kernel: tuple[str, dict[str, int]], options: dict[str, object], measured: float
) -> None:
    best, other = (predict(kernel, one) for one in ({}, options))
    assert 0 < (other / best - 1) / (measured - 1) < 2


@pytest.mark.parametrize(
    ("kernel", "measured"),
    [
        (("elementwise/gelu", {"N": 1 << 28}), 273.5),  # instructions take as long as memory
        (("elementwise/hadamard", {"M": 65536, "N": 4096}), 316.3),
        (("rows/cast_int8_rows", {"M": 65536, "N": 4096}), 186.1),
        (("elementwise/embedding", {"tokens": 65536, "vocabulary": 128256, "width": 4096}), 262.8),  # an id a row
        (("rows/top_k", {"M": 262144, "N": 256}), 139.2),  # a loop of compares that is not scheduled
        (("models/gated_delta_rule", {"batch": 1, "S": 8192, "heads": 16}), 710.7),  # a loop in a scheduled one
        (("rows/softmax_online", {"M": 4096, "N": 131072}), 782.6),  # rows that two loops read, more than L2 holds
        (("models/mamba_chunk_scan", {"batch": 4, "chunks": 32, "heads": 64}), 426.6),  # four iterations at most
    ],
)
def test_machine_code_is_counted(kernel: tuple[str, dict[str, int]], measured: float) -> None:
    assert predict(kernel, {}) == pytest.approx(measured, rel=0.2)


def predict(kernel: tuple[str, dict[str, int]], options: dict[str, object]) -> float:
    """Return the predicted microseconds of a sample on an H200."""
    name, constants = kernel
    text = (SAMPLES / f"{name}.tl").read_text(encoding="utf-8")
    asked = CompileOptions(target="sm_90a", gpu="H200", defines=tuple(constants.items()), **options)
    report = build_report(build_kernel(SourceFile(f"{Path(name).name}.tl", text), asked, Observer()))
    return report.at(report.predicted)
