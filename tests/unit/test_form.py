"""Operations of tile IR that was written by hand, or changed since, are held against their forms."""

from __future__ import annotations

import pytest

from tilec.driver.build import load_kernel
from tilec.driver.observer import Observer
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

FRAME = """kernel k(A, B, H), blocks bx < 4, 128 threads
  global A: float32[64, 32]
  global B: float32[64, 32]
  global H: float16[2, 16, 16, 8]
  shared s: float32[64, 32]
  shared t: float32[32, 64]
  shared h: float16[64, 64]
  shared w: uint32[128]
  shared x: float32[16, 32]
  fragment f: float32[64, 32]
  fragment r: float32[64]
  fragment c: float32[64, 64]
  fragment g: float16[64, 32]
  tmem m: float32[128, 64]
  tmem v: uint32[128, 4]
  reducer p: float32[64]
  barrier bar: uint64[2]

  alloc_barrier barrier=bar[0], counts=[1, 128]
  """

GOOD = (
    "copy A[:, :], s[:, :]",
    "copy A[:, :], s[:, :], asynchronous=True",
    "copy A[:, :], s[:, :], announces=True, barrier=bar[0], leader=0",
    "reduce f[:, :], r[:], clear=True, dim=1, kind='sum'",
    "scan s[:, :], s[:, :], dim=0, kind='max', reverse=False",
    "fill f[:, :], value=float32(1.0)",
    "transpose s[:, :], t[:, :]",
    "gemm h[:, :], h[:, :], c[:, :], clear_accum=False, policy='square', transpose_A=False, transpose_B=True",
    "im2col H[:, :, :, :], h[:, :], column=int32(0), dilation=1, kernel=3, pad=1, row=bx * 64, stride=1",
    "atomic f[:, :], A[:, :], kind='add', order='relaxed', use_tma=False",
    "reducer_init p[:], everywhere=True, kind='max', value=None",
    "finalize_reducer p[:], r[:], kind='max'",
    "barrier id=3, threads=64",
    "wait pending=0",
    "rendezvous what='cluster_sync'",
    "device_assert condition=bx < 3, message='far'",
    "set_registers count=40",
    "expect_tx arrives=True, barrier=bar[1], bytes=128, leader=0",
    "arrive barrier=bar[1]",
    "await_barrier barrier=bar[1], parity=int32(0)",
    "send s[:, :], s[:, :], block=int32(1)",
    "scale_copy w[:], v[:, :], leader=0",
    "scatter4 x[0:+4, :], B[0, 0:+32], row0=int32(0), row1=int32(1), row2=int32(2), row3=bx",
    "gather4 B[0, 0:+32], x[0:+4, :], announces=True, barrier=bar[0], leader=0, "
    "row0=int32(0), row1=int32(1), row2=int32(2), row3=bx",
)

BAD = (
    ("explode s[:, :]", "there is no operation 'explode'"),
    ("refused s[:, :], reads=1", "there is no operation 'refused'"),
    ("copy A[:, :]", "copy has 1 regions, expected 2"),
    ("copy A[0:+32, :], s[:, :]", "have different shapes: 32 × 32 and 64 × 32"),
    ("copy A[:, :], bar[:]", "is barrier, expected"),
    ("copy s[:, :], A[:, :], asynchronous=True", "asynchronous is for copies from a tensor to a shared tile"),
    ("copy A[:, :], s[:, :], asynchronous=1", "copy.asynchronous: expected one of True, found 1"),
    ("copy A[:, :], s[:, :], width=3", "copy.width: expected one of 1, 2, 4, 8, 16, found 3"),
    ("copy A[:, :], s[:, :], via='tma'", "copy: 'via' is set by passes"),
    ("copy A[:, :], s[:, :], announces=True, barrier=s[0, 0], leader=0", "expected an element of a barrier"),
    ("copy A[:, :], s[:, :], announces=True, barrier=bar[0], leader=128", "leader is thread 128 of 128"),
    ("copy A[:, :], s[:, :], announces=True, barrier=bar[0]", "a leader and a barrier come together"),
    ("reduce f[:, :], r[:], dim=1, kind='sum'", "reduce: 'clear' is missing"),
    ("reduce f[:, :], r[:], clear=True, dim=1, kind='median'", "reduce.kind: expected one of 'sum', 'max'"),
    ("reduce f[:, :], r[:], clear=True, dim=1.0, kind='sum'", "reduce.dim: expected a whole number, found 1.0"),
    ("reduce f[:, :], r[:], clear=True, dim=2, kind='sum'", "dim is 2, f has 2 dimensions here"),
    ("reduce f[:, :], r[:], clear=True, dim=0, kind='sum'", "[64, 32] without dimension 0 is not [64]"),
    ("reduce g[:, :], r[:], clear=True, dim=1, kind='sum'", "g is float16, r is float32"),
    ("reduce f[:, :], r[:], clear=True, dim=1, kind='bitor'", "there is no bitor of float32"),
    ("fill f[:, :], value=1.0", "fill.value: expected an expression, as int32(0), found 1.0"),
    ("fill f[:, :], value=float16(1.0)", "float16(1.0) is float16, f is float32"),
    ("fill A[:, :], value=float32(1.0)", "is global, expected shared or fragment"),
    ("transpose s[:, :], s[:, :]", "the transpose of s: float32[64, 32] does not have the shape of s: float32[64, 32]"),
    (
        "gemm h[:, :], h[:, :], f[:, :], clear_accum=False, policy='square', transpose_A=False, transpose_B=True",
        "operands disagree",
    ),
    (
        "gemm h[:, :], s[:, :], c[:, :], clear_accum=False, policy='square', transpose_A=False, transpose_B=False",
        "operands disagree",
    ),
    (
        "gemm h[:, :], h[:, :], c[:, :], clear_accum=False, policy='round', transpose_A=False, transpose_B=True",
        "gemm.policy: expected one of",
    ),
    (
        "gemm h[:, :], h[:, :], m[0:+64, :], clear_accum=False, policy='square', transpose_A=False, transpose_B=True",
        "leader and clear_when need C in tensor memory",
    ),
    (
        "im2col H[:, :, :, :], h[:, :], column=int32(0), dilation=1, kernel=3, pad=1, row=bx * 64, stride=0",
        "im2col.stride: expected a whole number from 1",
    ),
    (
        "im2col H[:, :, :, :], h[:, :], column=int32(0), dilation=9, kernel=3, pad=1, row=int32(0), stride=1",
        "the filter is larger than the images",
    ),
    ("atomic f[:, :], A[:, :], kind='xor', order='relaxed', use_tma=False", "atomic.kind: expected one of 'add'"),
    ("barrier id=3", "a barrier with a number is for whole warps"),
    ("wait pending=-1", "wait.pending: expected a whole number from 0"),
    ("rendezvous what='sync_grid'", "sync_grid needs a counter"),
    ("rendezvous what='lunch'", "rendezvous.what: expected one of cluster_sync"),
    ("device_assert condition=bx, message=''", "expected an expression of bool"),
    ("set_registers count=41", "set_registers.count: expected a multiple of 8, found 41"),
    ("expect_tx arrives=True, barrier=bar[1], bytes=0, leader=0", "expect_tx.bytes: expected a whole number from 1"),
    ("alloc_barrier barrier=bar[0], counts=[1, 'x']", "alloc_barrier.counts[1]: expected a whole number, found 'x'"),
    ("alloc_barrier barrier=bar[0], counts=[1]", "bar: uint64[2] does not match the 1 barriers of counts"),
    (
        "await_barrier acquires=['pipe', 'both'], barrier=bar[1], parity=int32(0)",
        "await_barrier.acquires[1]: expected one of 'producer', 'consumer', found 'both'",
    ),
    ("await_barrier barrier=bar[1], parity=0", "await_barrier.parity: expected an expression of int32, as int32(0)"),
    ("send s[:, :], s[:, :], block=1.5", "send.block: expected an expression, as int32(0)"),
    ("scale_copy w[0:+64], v[:, :], leader=0", "is no line of 128 words"),
    (
        "scatter4 x[2:+4, :], B[0, 0:+32], row0=int32(0), row1=int32(1), row2=int32(2), row3=int32(3)",
        "do not begin at a multiple of four",
    ),
)


def _read(statement: str) -> None:
    load_kernel(SourceFile("k.tile", f"{FRAME}{statement}\n"), CompileOptions(target="sm_100a"), Observer())


@pytest.mark.parametrize("statement", GOOD)
def test_what_has_its_form(statement: str) -> None:
    _read(statement)
    text = print_kernel(read_kernel(f"{FRAME}{statement}\n"))
    assert print_kernel(read_kernel(text)) == text


@pytest.mark.parametrize(("statement", "says"), BAD)
def test_what_has_not(statement: str, says: str) -> None:
    """The line is named, and what was expected there."""
    with pytest.raises(CompileError) as caught:
        _read(statement)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-tile-ir"
    assert says in diagnostic.title
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.line == FRAME.count("\n") + 1
