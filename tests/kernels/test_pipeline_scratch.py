"""Operations on a stage of a tile pipeline that become several statements: each of these names the version too."""

from __future__ import annotations

import pytest
from snippets import TARGETS, kernel, runs

PARAMS = 'A: T.Tensor((48, 128), "{dtype}"), B: T.Tensor((48, 128), "float32")'
LOAD = """
tile = T.alloc_shared((48, 32), "{dtype}")
made = T.alloc_shared((48, 32), "{dtype}")
wide = T.alloc_fragment((32, 32), "float32")
rows = T.alloc_fragment((48,), "{dtype}")
pipeline = T.InputTilePipeline((tile,), stages={stages})
with T.ws(0):
    for k in T.serial(4):
        with pipeline.producer().acquire() as stage:
            T.copy(A[0, k * 32], stage.tile)
with T.ws(1):
    for k in T.serial(4):
        with pipeline.consumer().acquire() as stage:
"""
USES = {
    "along rows": "T.cumsum(stage.tile, made, dim=1)\nT.copy(made, B[0, k * 32])",
    "along columns": "T.cummax(stage.tile, made, dim=0, reverse=True)\nT.copy(made, B[0, k * 32])",
    "in place": "T.cumsum(stage.tile, dim=-1)\nT.copy(stage.tile, B[0, k * 32])",
    "reduction": "T.reduce_sum(stage.tile, rows, dim=1)\nfor i in T.Parallel(48):\n    B[i, k] = rows[i]",
    "product": "T.gemm(stage.tile, stage.tile, wide, transpose_A=True, clear_accum=True)\nT.copy(wide, B[0, k * 32])",
    "conditional": "if k > 1:\n    T.cumsum(stage.tile, made, dim=1)\n    T.copy(made, B[0, k * 32])",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("use", USES)
def test_uses(use: str, stages: int, target: str) -> None:
    inside = "".join(f"            {line}\n" for line in USES[use].split("\n"))
    body = LOAD.format(dtype="float32", stages=stages) + inside
    runs(kernel(PARAMS.format(dtype="float32"), body, 256), target)


def test_parts_count_the_dimensions_that_they_have() -> None:
    """An index selects; what is left counts from 0."""
    text = kernel(
        'A: T.Tensor((3, 16, 32), "float32"), B: T.Tensor((16, 32), "float32")',
        's = T.alloc_shared((3, 16, 32), "float32")\nu = T.alloc_shared((16, 32), "float32")\n'
        "T.copy(A, s)\nT.cumsum(s[1, :, :], u, dim=1)\nT.copy(u, B)",
    )
    for target in TARGETS:
        runs(text, target)
