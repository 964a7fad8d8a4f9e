"""--consumer-warpgroups: the same results with another number of warpgroups than the kernel asks for, or an error that
says why not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import HERE, SAMPLES

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

TYPES = HERE / "gemm_types.tl"


def made(path: Path, consumers: int | None, target: str = "sm_90a", **defines: Value) -> Build:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    return build_kernel(
        source, CompileOptions(target=target, defines=tuple(defines.items()), consumer_warpgroups=consumers), Observer()
    )


def is_right(built: Build, seed: int | None = None) -> bool:
    found = emulate.draw_arguments(built.kernel, built.manifest, seed or 0)
    expected = found.copy()
    emulate.emulate_build(built, found, options=RunOptions(adversary=seed))
    emulate.run_reference(built.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(built.kernel, built.manifest, found, expected))


FAMILY = [
    *(("float16", "float32", stored) for stored in ("NN", "NT", "TN", "TT")),
    ("bfloat16", "float32", "NT"), ("float32", "float32", "NN"), ("float8_e4m3fn", "float32", "NN"),
    ("int8", "int32", "TT"),
]  # fmt: skip


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "accumulator", "stored"), FAMILY)
def test_the_family(dtype: str, accumulator: str, stored: str, consumers: int) -> None:
    """A tile of 64 rows for each, whatever `threads` says: the same kernel as with threads=128·N."""
    rows, depth = 64 * consumers, {"float32": 32, "float16": 64, "bfloat16": 64}.get(dtype, 128)
    defines: dict[str, Value] = {
        "dtype": dtype, "other": dtype, "accumulator": accumulator, "out": accumulator, "tA": stored[0] == "T",
        "tB": stored[1] == "T", "M": rows, "N": 64, "K": 3 * depth, "bM": rows, "bN": 64, "bK": depth,
    }  # fmt: skip
    asked = made(TYPES, consumers, threads=512 if consumers != 2 else 128, **defines)
    assert "wgmma.mma_async" in asked.ptx and "mma.sync" not in asked.ptx
    assert asked.ptx == made(TYPES, None, threads=128 * consumers, **defines).ptx
    assert is_right(asked)


@pytest.mark.parametrize(("consumers", "rows", "columns"), [(2, 64, 128), (4, 128, 128), (1, 192, 64), (3, 192, 256)])
def test_tiles_shared_in_other_ways(consumers: int, rows: int, columns: int) -> None:
    """Columns too, more than 64 rows each, and the largest tile that three of them have."""
    built = made(TYPES, consumers, M=2 * rows, N=columns, K=128, bM=rows, bN=columns)
    for seed in (None, 1):
        assert is_right(built, seed)


@pytest.mark.parametrize(("consumers", "columns"), [(1, 256), (2, 256), (3, 128)])
def test_the_largest_shape_where_the_assembler_takes_it(consumers: int, columns: int) -> None:
    """m64n256 wants 154 registers when a kernel starts: 128 is what each of four warpgroups then has. What is decided
    says so, and the assembler has nothing to say of the code."""
    rows = 64 * consumers
    built = made(SAMPLES / "gemm.tl", consumers, M=4 * rows, N=1024, K=512, block_M=rows, block_N=256)
    said = [d["chosen"] for d in json.loads(built.trace)["tilec"]["decisions"] if d["what"] == "products"]
    assert said == (["256 columns by 2 instructions"] if columns < 256 else [])
    assert set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", built.ptx)) == {str(columns)}
    assert not re.search(r"C7\d{3}|spill", " ".join(w.title for w in built.warnings))


def test_on_ampere() -> None:
    built = made(SAMPLES / "gemm.tl", 1, target="sm_80", M=128, N=128, K=128)
    assert built.manifest.block == (128, 1, 1)
    assert is_right(built)


def test_what_is_no_product_is_shared_out_too() -> None:
    built = made(SAMPLES / "softmax.tl", 3, M=16)
    assert built.manifest.block[0] == 384 and is_right(built)


def refusal(path: Path, consumers: int, **defines: Value) -> str:
    with pytest.raises(CompileError) as caught:
        made(path, consumers, **defines)
    (found,) = caught.value.diagnostics
    assert found.code == "bad-consumer-warpgroups" and found.primary is not None and found.help
    return f"{found.title}: {found.primary.text}"


def test_what_they_cannot_share() -> None:
    assert "3 warpgroups cannot share a 128 × 128 accumulator" in refusal(SAMPLES / "gemm.tl", 3)
    assert "4 warpgroups cannot share a 192 × 128 accumulator" in refusal(SAMPLES / "gemm.tl", 4, block_M=192, M=1152)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("T.annotate_layout({f: T.Fragment((128,), forward_fn=lambda i: (i, 0))})", "a layout assigns"),
        (
            "for i in T.Parallel(128, loop_layout=T.Fragment((128,), forward_fn=lambda i: (i, 0))): f[i] = 1.0",
            "assigns work to threads",
        ),
        ("if T.get_thread_binding() < 7: g[0] = 1.0", "this assigns work to threads"),
        ("b = T.alloc_barrier(128)", "counts the threads"),
    ],
)
def test_what_depends_on_the_number(statement: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "k.tl"
    path.write_text(f"""
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=128) as bx:
        f = T.alloc_fragment((128,), "float32")
        g = T.alloc_shared((128,), "float32")
        {statement}
        T.fill(f, 1)
        T.copy(f, A)
""")
    assert reason in refusal(path, 2)


def test_the_same_number_changes_nothing() -> None:
    assert made(TYPES, 1).ptx == made(TYPES, None).ptx
