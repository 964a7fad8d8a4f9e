"""T.gemm on sm_100a by the tensor cores of two blocks together: right whatever the machine does, every piece of the
protocol needed, and what is not done that way, with the reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness import HERE, SAMPLES
from pieces import TENSOR_PIECES, is_right, not_missed
from test_adversary import compute

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL = HERE / "tensor_gemm.tl"
ALONG_Y = (1, 2, 1)
SMALL: dict[str, Value] = {"M": 256, "N": 64, "K": 128}


def paired(
    path: Path = KERNEL, *, cluster: tuple[int, int, int] = ALONG_Y, pairs: bool = True, **sizes: Value
) -> Build:
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    options = CompileOptions(target="sm_100a", cluster=cluster, cta_pairs=pairs, defines=tuple(sizes.items()))
    return build_kernel(source, options, Observer())


def is_by_pairs(made: Build) -> bool:
    groups = set(re.findall(r"tcgen05\S*cta_group::(\d)", made.ptx))
    assert len(groups) <= 1
    return groups == {"2"}


def check(made: Build, *adversaries: int | None, sizes: dict[str, int] | None = None) -> None:
    for adversary in adversaries or (None, 1):
        found = emulate.draw_arguments(made.kernel, made.manifest, 1, sizes)
        expected = found.copy()
        emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
        emulate.run_reference(made.kernel, expected)
        results = emulate.compare_arguments(made.kernel, made.manifest, found, expected)
        assert results and all(result.matches for result in results)


def agrees(**sizes: Value) -> Build:
    made = paired(**sizes)
    assert is_by_pairs(made)
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    check(made)
    return made


def decided(made: Build) -> str:
    rows = json.loads(made.trace)["tilec"]["decisions"]
    (why,) = (row["why"] for row in rows if row["what"] == "CTA pairs")
    return str(why)


# ---- shapes, types, iterations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trip_count", [1, 2, 3, 4, 5])
def test_iterations(trip_count: int) -> None:
    """One to one more than the depth of the ring: 4 versions."""
    agrees(**{**SMALL, "K": 64 * trip_count}, num_stages=4)


@pytest.mark.parametrize("trip_count", [0, 1, 3, 4, 5])
def test_iterations_at_run_time(trip_count: int) -> None:
    tile: dict[str, Value] = {"M": 256, "N": 128, "bN": 128, "threads": 256}
    made = paired(**tile, num_stages=4, at_run_time=True, tA=True, tB=False)
    assert is_by_pairs(made)
    check(made, 0, 1, sizes={"k": 64 * trip_count})


@pytest.mark.parametrize(
    ("rows", "columns", "threads"),
    [(128, 32, 128), (128, 64, 128), (128, 96, 128), (128, 128, 256), (128, 256, 256), (256, 64, 256)],
)
def test_tiles(rows: int, columns: int, threads: int) -> None:
    """Of 128 rows and several times that; the first block has the first half of B's columns, whatever their number."""
    agrees(M=2 * rows, N=2 * columns, K=64, bM=rows, bN=columns, bK=32, threads=threads)


@pytest.mark.parametrize("stored", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32"), ("int8", "int32")],
)
def test_stored_either_way(dtype: str, accumulator: str, stored: str) -> None:
    columns = 128 if dtype in ("float16", "bfloat16") else 256  # two panels of 128 bytes
    agrees(
        dtype=dtype, other=dtype, accumulator=accumulator, out=accumulator,
        tA=stored[0] == "T", tB=stored[1] == "T", M=256, N=columns, bN=columns, threads=256, K=128,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "other", "accumulator", "depth"),
    [
        ("float32", "float32", "float32", 32), ("uint8", "uint8", "int32", 32), ("float16", "float16", "float16", 64),
        ("float8_e5m2", "float8_e4m3fn", "float32", 64),
    ],
)  # fmt: skip
def test_types(dtype: str, other: str, accumulator: str, depth: int) -> None:
    agrees(**{**SMALL, "K": 3 * depth}, dtype=dtype, other=other, accumulator=accumulator, out=accumulator, bK=depth)


@pytest.mark.parametrize("sizes", [(512, 256, 192), (200, 136, 104), (640, 100, 72)])
def test_tiles_may_hang_over(sizes: tuple[int, int, int]) -> None:
    """Whole pairs of blocks only, of which the second may have nothing to store."""
    m, n, k = sizes
    if -(-m // 128) % 2:
        m += 128
    made = paired(SAMPLES / "gemm.tl", M=m, N=n - n % 8, K=k)
    assert is_by_pairs(made)
    check(made)


@pytest.mark.weekly
def test_blocks_of_a_persistent_grid() -> None:
    """More tiles than multiprocessors: two versions of the sum, which threads of both blocks give back."""
    made = paired(M=128 * 16, N=320, bN=32, K=96, bK=32)
    assert is_by_pairs(made) and made.program.tensor[0].depth == 2
    assert made.manifest.grid != (10, 16, 1)
    check(made)


# ---- machines --------------------------------------------------------------------------------------------------------


def in_one_pair() -> Build:
    """A loop over four tiles in each of two blocks, three iterations each, in two versions of the sum."""
    head, _, body = KERNEL.read_text(encoding="utf-8").partition("        T.clear(C_l)\n")
    body = "".join(f"    {line}\n" for line in ("        T.clear(C_l)\n" + body).splitlines())
    text = head.replace("T.ceildiv(N, bN), T.ceildiv(M, bM), threads", "1, 2, threads").replace(
        "(bx, by)", "(bx, half)"
    )
    text += "        for wave in T.serial(T.ceildiv(M, 2 * bM)):\n            by = wave * 2 + half\n" + body
    sizes = (("M", 1024), ("N", 64), ("K", 96), ("bK", 32))
    options = CompileOptions(target="sm_100a", cluster=ALONG_Y, defines=sizes)
    return build_kernel(SourceFile("tiles.tl", text), options, Observer())


def test_right_on_every_machine() -> None:
    made = in_one_pair()
    assert is_by_pairs(made)
    assert all(compute(made, made.ptx, adversary) for adversary in range(4))


@pytest.mark.parametrize(
    "pattern",
    (*TENSOR_PIECES, r"mbarrier\.arrive\.(release\.cluster\.)?shared::cluster", r"barrier\.cluster\.(arrive|wait)"),
)
def test_each_piece_is_needed(pattern: str) -> None:
    assert not_missed(in_one_pair(), pattern) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".multicast::cluster.b64 [", ".b64 ["),  # the tensor cores tell the block alone that asked them
        (", 3;", ", 1;"),  # or the mask does
        ("complete_tx::bytes.cta_group::2", "complete_tx::bytes"),  # loads signal a barrier of their own block
        ("and.b32 %r{n}, %r{m}, -2;", "and.b32 %r{n}, %r{m}, -1;"),  # or name it
        ("expect_tx.shared::cta.b64 _, [%r{a}+{o}], 20480", "expect_tx.shared::cta.b64 _, [%r{a}+{o}], 10240"),
        ("and.b32 %r{n}, %r{m}, 1;", "and.b32 %r{n}, %r{m}, 0;"),  # both blocks ask
    ],
)
def test_what_makes_it_a_pair_is_needed(old: str, new: str) -> None:
    made = in_one_pair()
    pattern = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(old))
    changed = 0
    lines = made.ptx.split("\n")
    for place, line in enumerate(lines):
        found = re.search(pattern, line)
        if not found or ("%h" not in line and old.startswith(", ") and "mov.u32" not in line):
            continue
        text = new.format(**found.groupdict())
        if ".b64 [" in new and "commit" in line:
            line = re.sub(r", %h\d+;", ";", line)
        changed += 1
        assert not is_right(made, [*lines[:place], line.replace(found.group(), text), *lines[place + 1 :]]), line
    assert changed


def test_the_verifier_counts_both_blocks() -> None:
    """Threads of both give a sum back; the tensor cores release tiles to both once."""
    program = in_one_pair().program
    assert not list(program_violations(program))
    for number, ring in enumerate(program.rings):
        assert ring.paired
        for wrong in (replace(ring, arrivals=ring.arrivals * 2), replace(ring, arrivals=ring.arrivals - 1 or 3)):
            rings = (*program.rings[:number], wrong, *program.rings[number + 1 :])
            assert list(program_violations(replace(program, rings=rings)))


# ---- decisions -------------------------------------------------------------------------------------------------------


def test_a_version_of_b_is_halved() -> None:
    whole, half = paired(**SMALL, pairs=False), paired(**SMALL)
    shapes = [next(t.buffer.shape for t in made.program.shared if t.buffer.name == "B_s") for made in (whole, half)]
    assert shapes == [(64, 64), (32, 64)]
    assert not is_by_pairs(whole) and decided(whole) == "--no-cta-pairs"
    assert ".multicast::cluster" in whole.ptx  # each has all of it then


@pytest.mark.parametrize(
    ("cluster", "sizes", "because"),
    [
        ((2, 1, 1), {"N": 128}, "the same rows of A_s"),
        ((2, 2, 1), {"N": 128}, "CTA pairs need a cluster of two blocks"),
        (ALONG_Y, {"bM": 64, "M": 128}, "64 rows of C_l"),
        (ALONG_Y, {"bN": 16}, "16 columns of C_l"),
        (ALONG_Y, {"tB": False}, "half of B_s does not start on a swizzle boundary"),
    ],
)
def test_why_not(cluster: tuple[int, int, int], sizes: dict[str, Value], because: str) -> None:
    made = paired(cluster=cluster, **{**SMALL, **sizes})
    assert because in decided(made) and not is_by_pairs(made)
    check(made, 1)


# ---- the sample ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adversary", [None, 1, 2])
@pytest.mark.parametrize("depth", [32, 64, 256])
def test_the_sample_by_one_block_and_by_two(depth: int, adversary: int | None) -> None:
    """Walks of three waves, of which the last has one tile for a pair of blocks."""
    path = SAMPLES / "gemm" / "gemm_sm100.tl"
    sizes: dict[str, Value] = {"M": 640, "N": 128, "K": depth, "walkers": 2, "block_N": 128, "block_K": 32}
    for cluster in ((1, 1, 1), (2, 1, 1)):
        made = paired(path, cluster=cluster, **sizes)
        assert is_by_pairs(made) == (cluster == (2, 1, 1))
        assert made.program.tensor[0].depth == 2
        check(made, adversary)
