"""The samples on a real GPU, against the tile-level reference. Skipped where there is no driver or GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.host import runtime
from tilec.support import files
from tilec.support.options import CompileOptions, Strategy, Value

SAMPLES = Path(__file__).parents[2] / "samples"
NEEDED = {"sm_80": (8, 0), "sm_86": (8, 6), "sm_89": (8, 9), "sm_90a": (9, 0)}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not runtime.has_gpu(), reason="no CUDA driver or no GPU")]

CASES: list[tuple[str, dict[str, Value]]] = [
    ("vector_add", {"N": 100_000}),
    ("softmax", {"M": 100}),
    ("gemm", {}),
    ("gemm", {"M": 200, "N": 168, "K": 200}),
    ("gemm", {"K": 64}),
    ("gemm", {"block_N": 256}),
    ("gemm", {"dtype": "bfloat16"}),
    ("gemm_bias_relu", {}),
]


TOGETHER: list[tuple[str, dict[str, Value]]] = [
    *(
        ("gemm/cluster", {"cluster_x": x, "cluster_y": y, "K": 640})
        for x, y in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2))
    ),
    ("gemm/cluster", {"M": 512, "N": 512, "K": 64}),
    ("gemm/persistent", {"cluster": 2}),
    ("rows/batch_norm", {"M": 2048}),
    ("rows/rmsnorm_dependent", {"M": 301}),
]
"""Clusters, a cooperative launch and a dependent one."""


@pytest.mark.parametrize("target", sorted(NEEDED))
@pytest.mark.parametrize(("name", "defines"), CASES, ids=lambda v: str(v))
@pytest.mark.parametrize("strategy", ["none", "unspecialize", "auto"])
def test_sample(name: str, defines: dict[str, Value], target: str, strategy: Strategy) -> None:
    _check(name, defines, target, strategy)


@pytest.mark.parametrize(("name", "defines"), TOGETHER, ids=lambda v: str(v))
def test_blocks_that_work_together(name: str, defines: dict[str, Value]) -> None:
    _check(name, defines, "sm_90a", "auto")


def _check(name: str, defines: dict[str, Value], target: str, strategy: Strategy) -> None:
    capability = runtime.compute_capability()
    needed = NEEDED[target]
    # sm_90a code runs on compute capability 9.0 only, sm_86 code on 8.6 and later 8.x.
    if capability != needed and (target.endswith("a") or capability[0] != needed[0] or capability < needed):
        pytest.skip(f"{target} code does not run on compute capability {capability[0]}.{capability[1]}")
    source = files.read_source(str(SAMPLES / f"{name}.tl"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), pipeline_strategy=strategy)
    build = driver.build_kernel(source, options, driver.Observer())
    arguments = emulate.draw_arguments(build.kernel, build.manifest, seed=1)
    expected = arguments.copy()
    kernel = runtime.Kernel(build.cubin)
    try:
        kernel.run(arguments.tensors, arguments.scalars)
    finally:
        kernel.close()
    emulate.run_reference(build.kernel, expected)
    wrong = [r for r in emulate.compare_arguments(build.kernel, build.manifest, arguments, expected) if not r.matches]
    assert wrong == []
