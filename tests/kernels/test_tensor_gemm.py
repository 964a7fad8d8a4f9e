"""T.gemm on sm_100a: sums in tensor memory, products asked for by one thread, right whatever the machine does, and
every piece of the protocol needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from harness import SAMPLES, agrees, built
from pieces import TENSOR_PIECES, is_right, not_missed
from test_adversary import compute

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGET = "sm_100a"
KERNEL = Path(__file__).parent / "tensor_gemm.tl"
SMALL = {"M": 128, "N": 64, "K": 192}


def goes_by_tcgen05(made: Build) -> None:
    assert "tcgen05.mma" in made.ptx and "mma.sync" not in made.ptx
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)


@pytest.mark.parametrize("sizes", [(128, 128, 64), (256, 128, 192), (200, 136, 104), (128, 256, 640)])
def test_the_sample_equals_numpy(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    goes_by_tcgen05(agrees(SAMPLES / "gemm.tl", TARGET, M=m, N=n, K=k))


@pytest.mark.parametrize("trip_count", [1, 2, 3, 4, 5])
def test_iterations(trip_count: int) -> None:
    """One to one more than the depth of the ring and its neighbours: 4 versions."""
    goes_by_tcgen05(agrees(KERNEL, TARGET, **{**SMALL, "K": 64 * trip_count}, num_stages=4))


@pytest.mark.parametrize("trip_count", [0, 1, 2, 3, 4, 5])
def test_iterations_at_run_time(trip_count: int) -> None:
    _, made = built(KERNEL, TARGET, **SMALL, num_stages=4, at_run_time=True, tA=True, tB=False)
    goes_by_tcgen05(made)
    check(made, adversary=1, sizes={"k": 64 * trip_count})


def check(made: Build, adversary: int, sizes: dict[str, int] | None = None) -> None:
    found = emulate.draw_arguments(made.kernel, made.manifest, 1, sizes)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    results = emulate.compare_arguments(made.kernel, made.manifest, found, expected)
    assert results and all(result.matches for result in results)


@pytest.mark.parametrize(
    ("rows", "columns", "threads"),
    [
        (64, 16, 128), (64, 96, 128), (64, 256, 256), (128, 16, 128), (128, 80, 128), (128, 256, 256), (256, 64, 256),
        (384, 48, 384), (128, 96, 384), (128, 512, 256),
    ],
)  # fmt: skip
def test_tiles(rows: int, columns: int, threads: int) -> None:
    """Of 64 rows, of 128 and of several times that, shared out among one to three warpgroups."""
    sizes = {"M": rows, "N": columns, "K": 64, "bM": rows, "bN": columns, "bK": 32, "threads": threads}
    sizes |= {"tA": rows > 256, "tB": columns <= 256}  # TMA's boxes have 256 rows at most
    if columns > 256:  # the fragment does not fit the registers
        _, made = built(KERNEL, TARGET, **sizes)
        assert "tcgen05.mma" in made.ptx
        check(made, adversary=1)
    else:
        goes_by_tcgen05(agrees(KERNEL, TARGET, **sizes))


@pytest.mark.parametrize("stored", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32"), ("int8", "int32")],
)
def test_stored_either_way(dtype: str, accumulator: str, stored: str) -> None:
    made = agrees(
        KERNEL, TARGET, dtype=dtype, other=dtype, accumulator=accumulator, out=accumulator,
        tA=stored[0] == "T", tB=stored[1] == "T", K=128,
    )  # fmt: skip
    goes_by_tcgen05(made)


@pytest.mark.parametrize(
    ("dtype", "other", "accumulator", "depth"),
    [
        ("float16", "float16", "float16", 64), ("float32", "float32", "float32", 32), ("int8", "int8", "int32", 64),
        ("uint8", "uint8", "int32", 32), ("float8_e4m3fn", "float8_e4m3fn", "float32", 128),
        ("float8_e5m2", "float8_e4m3fn", "float32", 64), ("float8_e4m3fn", "float8_e4m3fn", "float16", 64),
    ],
)  # fmt: skip
def test_types(dtype: str, other: str, accumulator: str, depth: int) -> None:
    made = agrees(
        KERNEL, TARGET, dtype=dtype, other=other, accumulator=accumulator, out=accumulator, bK=depth, K=3 * depth
    )
    goes_by_tcgen05(made)


def twice(first: str, second: str) -> Build:
    """The loop again behind itself on the same shared tiles, each loop with this in front of it."""
    head, _, rest = KERNEL.read_text(encoding="utf-8").partition("        T.clear(C_l)\n")
    loop, store, end = rest.partition("        T.copy(C_l")
    text = "".join([head, first, loop, second, loop, store, end])
    sizes = (*SMALL.items(), ("bK", 32))
    return build_kernel(SourceFile("twice.tl", text), CompileOptions(target=TARGET, defines=sizes), Observer())


@pytest.mark.parametrize("adversary", [0, 1])
def test_two_loops_with_the_same_tiles(adversary: int) -> None:
    """Both sums in tensor memory, or neither: threads and the tensor cores do not release a ring alike."""
    clear = "        T.clear(C_l)\n"
    both = twice(clear, clear)
    assert both.ptx.count("tcgen05.commit") == 4 and "mma.sync" not in both.ptx
    check(both, adversary)
    neither = twice(clear, "")
    assert "tcgen05" not in neither.ptx
    check(neither, adversary)


@pytest.mark.parametrize("shape", [(2, 1), (2, 2)])
def test_blocks_that_load_together(shape: tuple[int, int]) -> None:
    """The tensor cores of each release a version to all that fill it."""
    sizes = {"M": 256, "N": 256, "K": 320, "block_N": 128, "cluster_x": shape[0], "cluster_y": shape[1]}
    _, made = built(SAMPLES / "gemm" / "cluster.tl", TARGET, **sizes)
    assert made.manifest.cluster == (*shape, 1) and ".multicast::cluster.b64" in made.ptx
    for adversary in range(2):
        check(made, adversary)


# ---- roles -----------------------------------------------------------------------------------------------------------


def test_one_thread_asks_and_the_tensor_cores_answer() -> None:
    _, made = built(SAMPLES / "gemm.tl", TARGET)
    consumer, producer, mma = made.program.roles
    assert [r.name for r in made.program.roles] == ["consumer", "producer", "mma"]
    assert mma.single_thread and mma.first_warp == producer.first_warp + 1
    releases = [op for op in warp.walk_operations(mma.body) if isinstance(op, warp.RingRelease | warp.RingFill)]
    assert releases and all(op.by_tensor_cores for op in releases)
    assert not any(isinstance(op, warp.TensorMma) for op in warp.walk_operations(consumer.body))
    assert [(tile.columns, tile.depth) for tile in made.program.tensor] == [(128, 1)]


@pytest.mark.parametrize(("columns", "depth"), [(256, 2), (512, 1)])
def test_a_persistent_grid_has_two_versions_if_they_fit(columns: int, depth: int) -> None:
    sizes = {"M": 128 * 40, "N": columns * 5, "bN": columns, "K": 64, "threads": 256, "bK": 32, "tB": False}
    _, made = built(KERNEL, TARGET, **sizes)
    (tile,) = made.program.tensor
    assert (tile.columns, tile.depth, made.program.tensor_columns) == (columns, depth, 512)


@pytest.mark.parametrize("trip_count", [1, 3])
def test_a_persistent_grid_is_right(trip_count: int) -> None:
    """160 blocks for 148 multiprocessors: by launch control, `test_dynamic_tile_scheduler` has a fixed stride too."""
    made = agrees(KERNEL, TARGET, M=128 * 16, N=160, bN=16, K=32 * trip_count, bK=32)
    assert made.manifest.grid == (160, 1, 1)
    assert made.program.tensor[0].depth == 2


# ---- machines --------------------------------------------------------------------------------------------------------


def test_right_on_every_machine() -> None:
    _, made = built(SAMPLES / "gemm.tl", TARGET, M=128, N=128, K=640)
    assert all(compute(made, made.ptx, adversary) for adversary in range(4))


@pytest.mark.parametrize("pattern", TENSOR_PIECES)
def test_each_piece_is_needed(pattern: str) -> None:
    """Several tiles a block, one after the other, in two versions: without any one piece something is wrong."""
    made = in_one_block(columns=64)
    assert is_right(made, made.ptx.split("\n"))
    assert not_missed(made, pattern) == []


def test_all_meet_behind_the_allocation_and_before_its_end() -> None:
    """One tile, which its warps store by themselves: nothing else makes them meet."""
    _, made = built(KERNEL, TARGET, M=128, N=62, K=64)
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if "bar.sync" in line]
    assert len(places) == 2 and is_right(made, lines)
    assert not any(is_right(made, [*lines[:place], "", *lines[place + 1 :]]) for place in places)


def test_what_threads_write_is_fenced() -> None:
    """Before TMA stores it, and before the tensor cores read it."""
    _, dequantised = built(Path(__file__).parent / "unpacked_in_shared.tl", TARGET, M=128, N=128, K=256)
    for made in (in_one_block(columns=64), dequantised):
        lines = made.ptx.split("\n")
        places = [place for place, line in enumerate(lines) if "fence.proxy.async" in line]
        assert places and is_right(made, lines)
        assert not any(is_right(made, [*lines[:place], "", *lines[place + 1 :]]) for place in places)


def in_one_block(columns: int) -> Build:
    """A loop over four tiles in one block, three iterations each."""
    head, _, body = KERNEL.read_text(encoding="utf-8").partition("        T.clear(C_l)\n")
    body = "".join(f"    {line}\n" for line in ("        T.clear(C_l)\n" + body).splitlines())
    text = head.replace("T.ceildiv(M, bM), threads", "1, threads").replace("(bx, by)", "(bx, _)")
    text += "        for by in T.serial(T.ceildiv(M, bM)):\n" + body
    sizes = (("M", 512), ("N", columns), ("K", 96), ("bK", 32))
    return build_kernel(SourceFile("tiles.tl", text), CompileOptions(target=TARGET, defines=sizes), Observer())


# ---- schedules -------------------------------------------------------------------------------------------------------

SAMPLE = SAMPLES / "gemm" / "gemm_sm100.tl"


def loops_of(calibration: Literal["silicon", "book"]) -> list[dict[str, Any]]:
    source = SourceFile(SAMPLE.name, SAMPLE.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(target=TARGET, calibration=calibration), Observer())
    found: list[dict[str, Any]] = json.loads(made.trace)["tilec"]["loops"]
    return found


@pytest.mark.parametrize("calibration", ["silicon", "book"])
def test_the_trace_names_tensor_memory(calibration: Literal["silicon", "book"]) -> None:
    """The read of a sum by its port, the columns of both versions, and at most four iterations that hold some."""
    tiles, products = loops_of(calibration)
    load = next(op for op in tiles["ops"] if op["name"] == "copy C_local.tmem → C_local")
    assert "tp_tmem_rd" in [row["slot"] for row in load["rows"]] and load["role"] == "consumer"
    pools = {pool["name"]: pool for pool in tiles["pools"]}
    assert pools["tmem"]["capacity"] == 512 and 256 <= pools["tmem"]["peak"] <= 512
    assert pools["tmem_banks"]["capacity"] == 4 and pools["tmem_banks"]["peak"] in (1, 2)
    (product,) = (op for op in products["ops"] if op["name"].startswith("gemm"))
    assert product["role"] == "mma" and "tc_and_mma" in [row["slot"] for row in product["rows"]]
    assert next(pool for pool in products["pools"] if pool["name"] == "tmem")["reserved"] == 512


def test_the_next_sum_begins_before_the_last_is_read() -> None:
    """The interval is that of the products alone: what is behind them is in the next stage."""
    tiles, _ = loops_of("silicon")
    loop, *behind = tiles["ops"]
    assert tiles["ii"] == tiles["mii"] == loop["latency"]
    assert [op["stage"] for op in behind] == [1] * len(behind)
    (twice,) = (edge for edge in tiles["edges"] if edge["why"] == "anti C_local.tmem")
    assert twice["distance"] == 2


@pytest.mark.parametrize("adversary", [0, 1, 2])
@pytest.mark.parametrize("columns", [128, 512])
def test_tiles_in_a_pipeline(columns: int, adversary: int) -> None:
    """Two versions of the sum, or one; more walkers than the last wave has work for."""
    sizes = {"M": 640, "N": columns, "K": 128, "walkers": 2, "block_N": columns, "block_K": 32}
    if columns == 512:
        text = SAMPLE.read_text(encoding="utf-8").replace("(N, K)", "(K, N)").replace("transpose_B=True", "")
        text = text.replace("(block_N, block_K)", "(block_K, block_N)")
        text = text.replace("B[bx * block_N, ko * block_K]", "B[ko * block_K, bx * block_N]")
        made = build_kernel(
            SourceFile("k.tl", text), CompileOptions(target=TARGET, defines=tuple(sizes.items())), Observer()
        )
    else:
        _, made = built(SAMPLE, TARGET, **sizes)
    assert made.program.tensor[0].depth == (2 if columns == 128 else 1)
    check(made, adversary)
