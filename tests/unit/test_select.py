"""Which mechanism each copy and gemm gets, and how many roles the kernel has: a table, and what must hold of all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.ir.tile import Buffer, Kernel, Region, TileOp, int32_const, walk_statements
from tilec.ir.types import FLOAT16, FLOAT32
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm, Policy
from tilec.passes.layout.fragments.warp_partition import partition_warpgroups, partition_warps
from tilec.passes.layout.select_mechanisms import find_cp_async_width, select_mechanisms
from tilec.support.diagnostics import CompileError
from tilec.support.options import EnvironmentSwitches, Strategy, Value
from tilec.target import table as targets

Make = Callable[..., Kernel]

ROOT = Path(__file__).parents[2]
GEMM = (ROOT / "samples/gemm.tl").read_text(encoding="utf-8")
TRANSPOSED = (ROOT / "tests/kernels/gemm_transposed.tl").read_text(encoding="utf-8")
ATTENTION = (ROOT / "tests/kernels/attention.tl").read_text(encoding="utf-8")
SOFTMAX = (ROOT / "samples/softmax.tl").read_text(encoding="utf-8")


def selected(kernel: Kernel, target: str, strategy: Strategy = "auto", **switches: bool) -> tuple[str, list[str]]:
    """The form, and the mechanism of every copy and gemm in program order."""
    found = select_mechanisms(kernel, targets.load_target(target), strategy, EnvironmentSwitches(**switches))
    operations = [s for s in walk_statements(found.kernel.body) if isinstance(s, Copy | Gemm)]
    return found.form.form, [str(s.via) for s in operations]


STAGED = ["stmatrix", "tma_store"]
ASYNC = ["cp_async", "cp_async"]
TMA = ["tma", "tma"]


@pytest.mark.parametrize(
    ("target", "strategy", "form", "via"),
    [
        ("sm_90a", "auto", "warp_specialised", [*TMA, "wgmma", *STAGED]),
        ("sm_90a", "warp-specialize", "warp_specialised", [*TMA, "wgmma", *STAGED]),
        ("sm_90a", "unspecialize", "unspecialised", [*TMA, "wgmma", *STAGED]),
        ("sm_90a", "none", "serial", [*TMA, "wgmma", *STAGED]),
        ("sm_80", "auto", "unspecialised", [*ASYNC, "mma", "registers"]),
        ("sm_80", "unspecialize", "unspecialised", [*ASYNC, "mma", "registers"]),
        ("sm_80", "none", "serial", [*ASYNC, "mma", "registers"]),
    ],
)
def test_the_sample_gemm(kernel: Make, target: str, strategy: Strategy, form: str, via: list[str]) -> None:
    assert selected(kernel(GEMM), target, strategy) == (form, via)


@pytest.mark.parametrize(
    ("kernel_text", "target", "strategy", "why"),
    [
        (GEMM, "sm_90a", "auto", None),
        (GEMM, "sm_80", "auto", "sm_80 has no TMA"),
        (GEMM, "sm_80", "unspecialize", None),
        (GEMM, "sm_90a", "none", None),
        (SOFTMAX, "sm_90a", "auto", "there is no T.Pipelined loop"),
        (SOFTMAX, "sm_90a", "none", "there is no T.Pipelined loop"),
    ],
)
def test_why_no_warps_have_roles_is_said_where_it_is_decided(
    kernel: Make, kernel_text: str, target: str, strategy: Strategy, why: str | None
) -> None:
    assert select_mechanisms(kernel(kernel_text), targets.load_target(target), strategy).form.why_alike == why


@pytest.mark.parametrize(
    ("strategy", "form", "via"),
    [
        ("auto", "unspecialised", ["cp_async", "registers"]),  # several blocks share a multiprocessor
        ("warp-specialize", "warp_specialised", ["tma", "registers"]),
    ],
)
def test_reductions_of_tiles(kernel: Make, strategy: Strategy, form: str, via: list[str]) -> None:
    argmax = (ROOT / "samples/rows/argmax.tl").read_text(encoding="utf-8")
    assert selected(kernel(argmax), "sm_90a", strategy) == (form, via)


@pytest.mark.parametrize(
    ("why", "defines", "form", "via"),
    [
        ("a row of B is 154 bytes", {"N": 77}, "unspecialised", ["cp_async", "registers", "wgmma", "registers"]),
        ("rows of 132 bytes", {"K": 66}, "unspecialised", ["cp_async", "cp_async", "wgmma", *STAGED]),
        ("rows of 66 bytes", {"K": 33}, "unspecialised", ["registers", "cp_async", "wgmma", *STAGED]),
        ("four warpgroups", {"threads": 512}, "unspecialised", [*TMA, "wgmma", *STAGED]),
        ("two warps", {"threads": 64}, "unspecialised", [*ASYNC, "mma", *STAGED]),
        ("no pipelining", {"num_stages": 0}, "serial", [*ASYNC, "wgmma", *STAGED]),
        ("bfloat16", {"dtype": "bfloat16"}, "warp_specialised", [*TMA, "wgmma", *STAGED]),
        ("not 64 rows", {"block_M": 32, "threads": 128}, "warp_specialised", [*TMA, "mma", *STAGED]),
        ("k of 16", {"block_K": 16}, "warp_specialised", [*TMA, "wgmma", *STAGED]),
    ],
)
def test_what_a_shape_allows(kernel: Make, why: str, defines: dict[str, Value], form: str, via: list[str]) -> None:
    assert selected(kernel(GEMM, **defines), "sm_90a") == (form, via), why


@pytest.mark.parametrize(
    ("defines", "last"),
    [({}, ["registers", "tma_store"]), ({"out": "float16"}, STAGED), ({"N": 190}, ["registers"])],
    ids=["float32", "float16", "unaligned"],
)
def test_how_an_accumulator_leaves(kernel: Make, defines: dict[str, Value], last: list[str]) -> None:
    """As whole rows by TMA where that is possible, converted by stmatrix where the tensor has 16 bits."""
    _, via = selected(kernel(TRANSPOSED, **defines), "sm_90a")
    assert via[3:] == last


def test_attention(kernel: Make) -> None:
    """Only copies inside the pipelined loop feed rings; a product's operand may leave an accumulator by stmatrix."""
    form, via = selected(kernel(ATTENTION), "sm_90a")
    assert form == "warp_specialised"
    assert via == ["cp_async", "tma", "tma", "wgmma", "registers", "stmatrix", "wgmma", "stmatrix", "tma_store"]
    form, via = selected(kernel(ATTENTION), "sm_80")
    assert form == "unspecialised"
    assert via == ["cp_async", *ASYNC, "mma", "registers", "registers", "mma", "registers"]


def test_a_kernel_without_a_pipelined_loop_has_one_role(kernel: Make) -> None:
    assert selected(kernel(SOFTMAX), "sm_90a") == ("serial", ["registers", "registers"])


TILES = 'A: T.Tensor((64, 64), "float16"), n: T.int32'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("if bx > 0:\n        T.copy(A[k * 8, 0], s)\n    T.copy(A[0, 0], u)", "under a condition or in an inner loop"),
        ("T.copy(A[k * 8 : k * 8 + 8, 0:32], s[:, 0:32])\n    T.copy(A[0, 0], u)", "it fills only a part of a tile"),
        ("T.copy(A[k * 8, 0], w)", "it converts float16 to float32"),
        ("T.clear(u)", "no copy from global to shared memory in a pipelined loop"),
    ],
)
def test_why_a_kernel_cannot_be_warp_specialised(body: Make, text: str, reason: str) -> None:
    allocations = "".join(
        f'{name} = T.alloc_shared((8, 64), "{dtype}")\n'
        for name, dtype in (("s", "float16"), ("u", "float16"), ("w", "float32"))
    )
    made = body(f"{allocations}for k in T.Pipelined(n):\n    {text}", TILES)
    assert selected(made, "sm_90a")[0] == "unspecialised"
    with pytest.raises(CompileError) as raised:
        selected(made, "sm_90a", "warp-specialize")
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "strategy-impossible"
    assert reason in diagnostic.title


STORES = """
a = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
d = T.alloc_fragment((64, 64), "float32")
T.gemm(a, a, c)
T.gemm(a, a, d)
T.copy(c, C[bx * 64, 0])
T.copy(d, {other}[bx * 64, 0])
"""


def test_staging_tiles_are_shared(body: Make) -> None:
    """Two accumulators of one shape leave one after the other through one tile."""
    params = 'C: T.Tensor((256, 64), "float16"), D: T.Tensor((256, 64), "float16")'
    found = select_mechanisms(body(STORES.format(other="D"), params), targets.load_target("sm_90a"), "auto")
    assert [b.name for b in found.kernel.buffers if b.scope == "shared"] == ["a", "c.staging"]


def test_a_tensor_that_is_written_twice_is_not_left_to_tma(body: Make) -> None:
    """Two stores by TMA would reach it in any order."""
    made = body(STORES.format(other="C"), 'C: T.Tensor((256, 64), "float16")')
    assert selected(made, "sm_90a")[1] == ["wgmma", "wgmma", "registers", "registers"]


# ---- cp.async --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "width"),
    [
        ("T.copy(A[bx * 8, 0], s)", 16),
        ("T.copy(A[bx * 8 + 1, 0], s)", 16),
        ("T.copy(A[0, bx * 8], s)", 16),
        ("T.copy(A[0, bx * 4], s)", 8),
        ("T.copy(A[0, bx * 4 + 2], s)", 4),
        ("T.copy(A[0, bx], s)", None),
        ("T.copy(A[0, n], s)", None),
        ("T.copy(B[0, bx * 8], s)", 4),
        ("T.copy(C[0, 0], s)", None),
        ("T.copy(V[bx * 8], v)", 16),
        ("T.copy(V[bx * 2], v)", 4),
        ("T.copy(A[0:8, 0:16], s[:, 0:16])", None),
    ],
)
def test_the_largest_chunk_of_cp_async(body: Make, copy: str, width: int | None) -> None:
    """Aligned in the tensor and in the tile, and never partly outside."""
    made = body(
        f's = T.alloc_shared((8, 32), "float16")\nv = T.alloc_shared((64,), "float16")\n{copy}',
        'A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 66), "float16"), C: T.Tensor((8, 32), "float32"), '
        'V: T.Tensor((200,), "float16"), n: T.int32',
    )
    (op,) = made.body
    assert isinstance(op, TileOp)
    assert find_cp_async_width(op, targets.load_target("sm_80")) == width


# ---- how threads share an accumulator --------------------------------------------------------------------------------


def gemm(m: int, n: int, k: int, policy: Policy = "square", *, a_t: bool = False, b_t: bool = False) -> Gemm:
    shapes = {"A": (k, m) if a_t else (m, k), "B": (n, k) if b_t else (k, n), "C": (m, n)}
    buffers = [
        Buffer(name, shape, FLOAT32 if name == "C" else FLOAT16, "fragment" if name == "C" else "shared")
        for name, shape in shapes.items()
    ]
    a, b, c = (Region(b, (int32_const(0), int32_const(0)), b.shape) for b in buffers)
    return Gemm(a, b, c, clear_accum=False, policy=policy, transpose_A=a_t, transpose_B=b_t)


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "policy", "groups"),
    [
        (64, 64, 64, 128, None, (1, 1)),
        (128, 128, 64, 128, None, (1, 1)),
        (128, 128, 64, 256, None, (2, 1)),
        (128, 256, 64, 256, "full_col", (1, 2)),
        (64, 256, 64, 256, None, (1, 2)),
        (64, 256, 64, 256, "full_row", None),
        (192, 128, 64, 384, None, (3, 1)),
        (64, 512, 64, 128, None, None),
        (128, 512, 64, 512, None, (2, 2)),
        (96, 64, 64, 128, None, None),
        (64, 64, 24, 128, None, None),
        (64, 64, 64, 160, None, None),
        (64, 64, 16, 128, None, (1, 1)),
    ],
)
def test_warpgroups(m: int, n: int, k: int, threads: int, policy: str, groups: tuple[int, int] | None) -> None:
    assert partition_warpgroups(gemm(m, n, k, policy), threads) == groups


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "policy", "warps"),
    [
        (128, 128, 32, 256, None, (2, 4)),
        (128, 128, 32, 128, None, (2, 2)),
        (128, 128, 32, 128, "full_row", (4, 1)),
        (128, 128, 32, 128, "full_col", (1, 4)),
        (64, 256, 32, 128, None, (1, 4)),
        (256, 64, 32, 128, None, (4, 1)),
        (16, 8, 16, 32, None, (1, 1)),
        (16, 8, 16, 64, None, None),
        (24, 8, 16, 32, None, None),
        (16, 16, 8, 32, None, None),
        (16, 16, 16, 48, None, None),
        (48, 48, 16, 96, None, (1, 3)),
    ],
)
def test_warps(m: int, n: int, k: int, threads: int, policy: str, warps: tuple[int, int] | None) -> None:
    assert partition_warps(gemm(m, n, k, policy), threads) == warps


@pytest.mark.parametrize("policy", ["square", "full_row", "full_col"])
def test_shares_are_whole_instructions(policy: str) -> None:
    """Whatever the shape: the parts are equal, and each is made of whole wgmma or mma blocks."""
    sizes = (8, 16, 24, 48, 64, 96, 128, 192, 256, 512)
    for m, n, groups in itertools.product(sizes, sizes, (1, 2, 3, 4)):
        for a_t, b_t in itertools.product((False, True), repeat=2):
            op = gemm(m, n, 64, policy, a_t=a_t, b_t=b_t)
            if shared := partition_warpgroups(op, 128 * groups):
                assert shared[0] * shared[1] == groups
                assert m % (64 * shared[0]) == 0
                assert n % (8 * shared[1]) == 0 and n // shared[1] <= 256
            if split := partition_warps(op, 32 * groups):
                assert split[0] * split[1] == groups
                assert m % (16 * split[0]) == 0 and n % (8 * split[1]) == 0


def test_names_hide_no_alignment(body: Make) -> None:
    text = """s = T.alloc_shared((64, 64), "float16")
for k in T.serial(4):
    half = k * 32
    column: T.int32 = half * 2
    T.copy(A[0, column], s)
"""
    kernel = body(text, 'A: T.Tensor((64, 256), "float16")')
    assert selected(kernel, "sm_80") == ("serial", ["cp_async"])
