"""One small text per stage of the back end, to be read: layouts, the scheduling problem, warp IR, PTX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.driver.build import Observer, PipelineStopped, build_kernel
from tilec.support.options import CompileOptions, Stage, Value
from tilec.support.source import SourceFile

Golden = Callable[[str, str, str], None]

SAMPLES = Path(__file__).parents[2] / "samples"
GEMM: dict[str, Value] = {"M": 256, "N": 256, "K": 256, "num_stages": 3}


def text(path: Path, stage: Stage, target: str, **defines: Value) -> str:
    """What `--emit` writes for the stage; of products as whole as they are written."""
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), register_stages=1)
    observer = Observer(keep={stage}, stop_after=stage)
    with pytest.raises(PipelineStopped):
        build_kernel(source, options, observer)
    return observer.texts[stage].decode()


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a", "sm_80"])
def test_warp_ir_of_a_gemm(golden: Golden, target: str) -> None:
    """Two roles and a ring between them, or three with a sum in tensor memory, or one role with versions, waits and
    barriers; the pipeline's three parts."""
    golden("warp", f"gemm_{target}", text(SAMPLES / "gemm.tl", "warp", target, **GEMM))


@pytest.mark.parametrize("form", [0, 1])
def test_expansion_of_a_manual_schedule(golden: Golden, form: int) -> None:
    """Prologue, steady state and epilogue, each statement with its iteration; nothing waits for anything yet."""
    path = SAMPLES.parent / "tests/kernels/manual.tl"
    golden("expand", f"manual_{form}", text(path, "expand", "sm_80", form=form))


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_expansion_of_two_levels(golden: Golden, target: str) -> None:
    """A prologue for each level, fragments whose number is the step's modulo the stages, and the first fragments of the
    next iteration in the last step of this one."""
    path = SAMPLES.parent / "tests/kernels/register_stages.tl"
    golden("expand", f"two_levels_{target}", text(path, "expand", target, trips=5))


LISTING: dict[str, Value] = {"trips": 5, "MOST": 6}
LARGE: dict[str, Value] = {"BM": 128, "BN": 192, "KI": 16, "threads": 256}  # products longer than the loads beside them


@pytest.mark.parametrize("stages", [1, 2])
def test_a_listing_before_and_after_its_fragments_have_stages(golden: Golden, stages: int) -> None:
    """More fragments, the steps written out, and step k on the fragment k modulo the stages; with one, as written."""
    path = SAMPLES.parent / "tests/kernels/gemm_of_parts.tl"
    of_shared = 3 if stages > 1 else 1
    name = "after" if stages > 1 else "before"
    golden("tile", f"two_levels_{name}", text(path, "tile", "sm_80", **LISTING, stages=of_shared, a_stages=stages))


@pytest.mark.parametrize(("target", "tiles"), [("sm_80", {}), ("sm_90a", LARGE)])
def test_warp_ir_of_two_levels(golden: Golden, target: str, tiles: dict[str, Value]) -> None:
    """Two iterations of tiles and a step of fragments in the prologues; then tiles two iterations ahead, fragments of
    the next step, in the last step those of the next iteration (in another version of the tile), and once an iteration
    a wait for tiles. By wgmma a product is always in flight."""
    path = SAMPLES.parent / "tests/kernels/gemm_of_parts.tl"
    whole = text(path, "warp", target, **LISTING, **tiles)
    golden("warp", f"two_levels_{target}", whole.partition("    # end of the pipeline")[0])


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_expansion_of_nested_pipelines(golden: Golden, target: str) -> None:
    """A pipeline in each part of the one around it; the copies say where both stand. Iterations known only at run
    time."""
    path = SAMPLES.parent / "tests/kernels/nested_gemm.tl"
    golden("expand", f"nested_{target}", text(path, "expand", target, counts=3))


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a", "sm_80"])
def test_layouts_of_a_gemm(golden: Golden, target: str) -> None:
    """Mechanisms, accumulator fragments and swizzled tiles."""
    golden("layout", f"gemm_{target}", text(SAMPLES / "gemm.tl", "layout", target, **GEMM))


def test_the_scheduling_problem_of_a_gemm(golden: Golden) -> None:
    """As JSON; here with one line for each op, edge, slot, pool and ring."""
    (loop,) = json.loads(text(SAMPLES / "gemm.tl", "problem", "sm_80", **GEMM))
    lines = []
    for name, value in loop["problem"].items():
        rows = value if isinstance(value, list) else [value]
        lines += [f"{name}:", *(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)]
    golden("problem", "gemm_sm_80", "\n".join(lines) + "\n")


def test_ptx_of_an_elementwise_kernel(golden: Golden, tmp_path: Path) -> None:
    """Vector loads and stores, a guard at the tensor's edge, a line for each line."""
    path = tmp_path / "scale.tl"
    path.write_text(
        """\
import tilelang.language as T
@T.prim_func
def scale(X: T.Tensor((1000,), "float32"), Y: T.Tensor((1000,), "float32"), factor: T.float32):
    with T.Kernel(8, threads=32) as bx:
        for i in T.Parallel(128):
            Y[bx * 128 + i] = X[bx * 128 + i] * factor
"""
    )
    ptx = text(path, "ptx", "sm_80")
    # The launch manifest has tests of its own, and is long.
    golden("ptx", "scale", "\n".join(line for line in ptx.split("\n") if "tilec_manifest" not in line[:60]))
