"""What the verifier of tile IR says of a file that a person or a program has changed, and that it is said in time."""

from __future__ import annotations

import pytest

from tilec.driver.build import build_library, load_kernel
from tilec.driver.observer import Observer, PipelineStopped
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

GOOD = """kernel k(A, C), blocks bx < 8, 128 threads
  global A: float16[512, 64]
  global C: float32[512, 64]
  shared s: float16[64, 64]
  fragment f: float32[64, 64]

  copy A[bx * 64:+64, :], s[:, :]
  for i, j in parallel(64, 64):
    n: uint32 = uint32(7)
    f[i, j] = exp2(float32(s[i, j])) + warp_sum(1.0) + fma(1.0, 2.0, 3.0) + select(vote_any(i < 3), 0.0, float32(n))
  copy f[:, :], C[bx * 64:+64, :]
"""

BAD = (
    ("128 threads", "16 threads", "a block of 16 threads; there are 32 to 1024, in whole warps of 32", 1),
    ("128 threads", "2048 threads", "a block of 2048 threads", 1),
    ("bx < 8", "bx < 2147483648", "a grid of (2147483648,) is empty, or larger than", 1),
    ("bx < 8", "bx < 8, by < 70000", "a grid of (8, 70000) is empty, or larger than", 1),
    ("s: float16[64, 64]", "s: float16[64, 9223372036854775808]", "s has shape (64, 9223372036854775808)", 4),
    ("shared s", "tmem s: float32[64]\n  shared s", "s is in tensor memory and has 1 dimension", 4),
    ("shared s", "tmem s: float16[64, 64]\n  shared unused", "an element of s, which is in tensor memory", 11),
    ("shared s", "barrier b: int32[2]\n  shared s", "b is int32[2], barriers are a row of uint64", 4),
    ("s[:, :]\n", "s[32:+64, :]\n", "a region of s covers 32:+64 in a dimension of 64", 7),
    ("s[:, :]\n", "s[-1:+64, :]\n", "a region of s covers -1:+64 in a dimension of 64", 7),
    ("exp2(", "exp3(", "there is no function 'exp3'", 10),
    ("exp2(", "j_1(", "there is no function 'j_1'", 10),
    ("exp2(float32(s[i, j]))", "pow(float32(s[i, j]))", "pow(float32(s[i, j])) is float32 of float32", 10),
    ("fma(1.0, 2.0, 3.0)", "fma(1.0, 2.0)", "fma(1.0, 2.0) is float32 of float32, float32", 10),
    ("warp_sum(1.0)", "warp_and(1.0)", "warp_and(1.0) is float32 of float32", 10),
    ("warp_sum(1.0)", "shfl_up(1.0, 1, 3)", "shfl_up(1.0, 1, 3) is float32 of float32, int32, int32", 10),
    ("vote_any(i < 3)", "vote_any(i)", "vote_any(i) is int32 of int32", 10),
    ("uint32(7)", "uint32(-7)", "-7 is not a value of uint32", 9),
    ("uint32(7)", "uint32(4294967296)", "4294967296 is not a value of uint32", 9),
    ("uint32(7)", "uint32(7.0)", "7.0 is not a value of uint32", 9),
    ("select(vote_any(i < 3)", "select(i < 3000000000", "3000000000 is not a value of int32", 10),
    ("parallel(64, 64)", "parallel(64, 10000000000)", "parallel variables for extents (64, 10000000000)", 8),
)


LOOP = GOOD.replace(
    "  copy f[:",
    "  for k in pipelined(0, 4, num_stages=2, stage=[0], order=[0], scheduling_hints={'groups': [0]}):\n"
    "    copy A[k * 64:+64, :], s[:, :]\n  copy f[:",
)
BAD_LOOPS = (
    ("num_stages=2", "num_stages=-1", "the loop over k has -1 stages"),
    (
        "num_stages=2",
        "dynamically_scheduled=True",
        "the values of k are dynamically scheduled, which only a pass may set",
    ),
    ("num_stages=2", "factor=0", "the loop over k is unrolled 0 times"),
    ("stage=[0]", "stage=[-3]", "has one below 0"),
    ("{'groups': [0]}", "{'groups': [0, 0]}", "lists of 1 and 2 entries for the statements of one loop"),
    ("{'groups': [0]}", "{'groups': [-2]}", "groups [-2] has one below -1"),
    ("{'groups': [0]}", "{'sync': [[1]]}", "sync [1] names statements that do not exist"),
    ("{'groups': [0]}", "{'sync': [['x']]}", "sync ['x'] names statements that do not exist"),
)
CONDITIONS = (
    ("%warpgroup >= 1 and %warpgroup < 2", "there are no warps 4 to 7"),
    ("%block_warp >= 2 and %block_warp < 5", "there are no warps 2 to 4"),
    ("1 >= 1 and %warpgroup < 2", "%warpgroup is not visible"),
    ("%warpgroup == 0", "%warpgroup is not visible"),
)


def _check(text: str) -> None:
    load_kernel(SourceFile("k.tile", text), CompileOptions(target="sm_90a"), Observer())


def test_the_good_one_is_built() -> None:
    with pytest.raises(PipelineStopped):
        build_library(SourceFile("k.tile", GOOD), CompileOptions(target="sm_90a"), Observer(stop_after="ptx"))


@pytest.mark.parametrize(("old", "new", "says", "line"), BAD)
def test_what_does_not_verify(old: str, new: str, says: str, line: int) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(CompileError) as caught:
        _check(GOOD.replace(old, new))
    found = {d.primary.span.line: d.title for d in caught.value.diagnostics if d.primary is not None}
    assert says in found[line]
    assert {d.code for d in caught.value.diagnostics} == {"bad-tile-ir"}


def test_each_line_is_told_of_its_own() -> None:
    wrong = GOOD.replace("exp2(", "exp3(").replace("uint32(7)", "uint32(-7)")
    with pytest.raises(CompileError) as caught:
        _check(wrong)
    assert [d.primary.span.line for d in caught.value.diagnostics if d.primary] == [9, 10]


def test_a_fill_of_all_rows_from_some_row_on() -> None:
    """A part as large as its tile that does not say where it begins is filled as far as the tile goes."""
    filled = GOOD.replace("  copy f[:", "  fill f[bx * 16:+64, :], value=float32(2.0)\n  copy f[:")
    with pytest.raises(PipelineStopped):
        build_library(SourceFile("k.tile", filled), CompileOptions(target="sm_90a"), Observer(stop_after="ptx"))


@pytest.mark.parametrize(("old", "new", "says"), BAD_LOOPS)
def test_what_is_asked_of_no_loop(old: str, new: str, says: str) -> None:
    _check(LOOP)
    assert LOOP.count(old) == 1
    with pytest.raises(CompileError, match="bad-tile-ir") as caught:
        _check(LOOP.replace(old, new))
    assert any(says in d.title for d in caught.value.diagnostics)


@pytest.mark.parametrize(("condition", "says"), CONDITIONS)
def test_the_warpgroup_is_only_for_roles(condition: str, says: str) -> None:
    _check(
        GOOD.replace("  copy f[:", "  if %warpgroup >= 0 and %warpgroup < 1:\n    set_registers count=40\n  copy f[:")
    )
    with pytest.raises(CompileError, match="bad-tile-ir") as caught:
        _check(GOOD.replace("  copy f[:", f"  if {condition}:\n    set_registers count=40\n  copy f[:"))
    assert any(says in d.title for d in caught.value.diagnostics)
