"""The samples on a real GPU, against the tile-level reference. Skipped where there is no driver or GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec import driver, emulate, files, runtime
from tilec.options import CompileOptions, Strategy, Value

SAMPLES = Path(__file__).parents[2] / "samples"
NEEDED = {"sm_80": (8, 0), "sm_90a": (9, 0)}

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


@pytest.mark.parametrize("target", sorted(NEEDED))
@pytest.mark.parametrize(("name", "defines"), CASES, ids=lambda v: str(v))
@pytest.mark.parametrize("strategy", ["none", "unspecialize", "auto"])
def test_sample(name: str, defines: dict[str, Value], target: str, strategy: Strategy) -> None:
    capability = runtime.compute_capability()
    needed = NEEDED[target]
    # sm_90a code runs on compute capability 9.0 only, sm_80 code on 8.x.
    if capability != needed if target.endswith("a") else capability[0] != needed[0]:
        pytest.skip(f"{target} code does not run on compute capability {capability[0]}.{capability[1]}")
    source = files.read_source(str(SAMPLES / f"{name}.tl"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), pipeline_strategy=strategy)
    build = driver.build(source, options, driver.Observer())
    arguments = emulate.random_arguments(build.kernel, build.manifest, seed=1)
    expected = arguments.copy()
    kernel = runtime.Kernel(build.cubin)
    try:
        kernel.run(arguments.tensors, arguments.scalars)
    finally:
        kernel.close()
    emulate.reference(build.kernel, expected)
    wrong = [r for r in emulate.compare(build.kernel, build.manifest, arguments, expected) if not r.matches]
    assert wrong == []
