"""Where the verifier of warp programs follows a role no further, it says so; and nowhere else."""

from __future__ import annotations

import pytest

from tilec.driver.build import build_kernel
from tilec.driver.observer import Observer
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def _nest(depth: int) -> SourceFile:
    loops = (f"{'    ' * (2 + at)}for k{at} in T.serial(4):\n{'    ' * (3 + at)}{COPY}\n" for at in range(depth))
    return SourceFile("nest.tl", f"{BEGIN}{''.join(loops)}        T.copy(tile, B)\n")


BEGIN = (
    "import tilelang.language as T\n\n\n@T.prim_func\n"
    'def kernel(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):\n'
    "    with T.Kernel(1, threads=128) as bx:\n"
    '        tile = T.alloc_shared((64, 64), "float32")\n'
)
COPY = "T.copy(A, tile)"


@pytest.mark.parametrize(("depth", "verify", "count"), [(9, True, 1), (9, False, 0), (3, True, 0)])
def test_a_role_that_is_followed_no_further_is_named(depth: int, verify: bool, count: int) -> None:
    observer = Observer()
    made = build_kernel(_nest(depth), CompileOptions(target="sm_80", verify=verify), observer)
    found = [w for w in observer.warnings if w.code == "not-verified"]
    assert made.cubin and len(found) == count
    if found:
        assert "role all" in found[0].title and 8 <= found[0].primary.span.line <= 8 + 2 * depth
