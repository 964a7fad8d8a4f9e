"""Names of TVM and forms of statements that TileLang's kernels use and that have one plain meaning, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilec
from tilec.support.diagnostics import CompileError

HEAD = "import tilelang.language as T\n"
LAUNCH = (
    HEAD
    + """
@T.prim_func
def k(A: T.Tensor((8,), "int32")):
    with T.Kernel(1):
"""
)


def build(text: str, target: str = "sm_80", **values: Any) -> tilec.Kernel:
    """Compile a kernel for the emulator."""
    return tilec.compile(HEAD + text, target=target, device="emulator", **values)


def find_mistake(text: str) -> tuple[str, str, str | None]:
    """Return the code, the title and the help of the only mistake of a kernel."""
    with pytest.raises(CompileError) as caught:
        build(text)
    (found,) = caught.value.diagnostics
    return found.code, found.title, found.help


def draw(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


GRID = """
@T.prim_func
def k(A: T.Tensor((64, 3), "float32"), n: T.int32, C: T.Tensor((64, 3, 2), "float32")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        for row, column in T.grid(3, 2):
            C[t, row, column] = -1
        i = n
        shape = (i, 2)
        for i, j in T.grid(*shape):  # the extent `i` is the one before the loop
            if i + j == 3:
                break
            if j == 0 and i == 1:
                continue
            C[t, i, j] = A[t, i] * (j + 1)
"""


def test_a_grid_is_one_serial_loop_in_another() -> None:
    a, c = draw(64, 3), np.zeros((64, 3, 2), np.float32)
    build(GRID)(a, 3, c)
    expected = a[:, :, None] * np.array([1, 2], np.float32)
    expected[:, 1, 0] = expected[:, 2, 1] = -1
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize(
    ("loop", "code", "title"),
    [
        ("i in T.grid()", "missing-argument", "T.grid needs at least one extent"),
        ("i in T.grid(2, 3)", "wrong-variable-count", "1 variable for 2 extents"),
        ("i, j in T.grid(2, 3.5)", "wrong-dtype", "T.grid: the bounds must be integers"),
        ("i in T.grid(2, stop=3)", "unknown-keyword", "T.grid has no parameter `stop`"),
    ],
)
def test_a_grid_is_refused_in_its_own_words(loop: str, code: str, title: str) -> None:
    assert find_mistake(f"{LAUNCH}        for {loop}:\n            A[i] = 1\n")[:2] == (code, title)


SHUFFLES = """
@T.prim_func
def k(A: T.Tensor((64,), "float16"), C: T.Tensor((3, 64), "float16")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        C[0, t] = T.tvm_warp_shuffle(0xFFFFFFFF, A[t], (t ^ 5) % 16, 16, 16)
        C[1, t] = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), A[t], 3, 32, 32)
        C[2, t] = T.tvm_warp_shuffle_down(-1, A[t], 2, width=8, warp_size=32)
"""


def test_shuffles_have_the_order_of_arguments_of_tvm() -> None:
    a, c = draw(64).astype(np.float16), np.zeros((3, 64), np.float16)
    build(SHUFFLES)(a, c)
    t = np.arange(64)
    sources = t // 16 * 16 + (t ^ 5) % 16, np.where(t % 32 < 3, t, t - 3), np.where(t % 8 < 6, t + 2, t)
    np.testing.assert_array_equal(c, [a[source] for source in sources])


PROFILED = """
from tilelang.layout import Layout
from tilelang.tools.cuda import iket

@T.prim_func
def k(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64), iket.range("all"):
        iket.mark("begin", payload=iket.payload(A[0], dtype="float32"))
        s = T.alloc_shared((64,), "float32")
        T.annotate_layout({s: Layout((64,), lambda i: i ^ 1)})
        with iket.range("load"):
            for i in T.Parallel(64):
                s[i] = A[i]
        for i in T.Parallel(64):
            C[i] = s[63 - i]
        iket.range_push("end")
        iket.range_pop()
"""


def test_marks_of_a_profiler_are_left_out() -> None:
    a, c = draw(64), np.zeros(64, np.float32)
    with pytest.warns(UserWarning, match="iket[.a-z_]* marks nothing"):
        kernel = build(PROFILED)
    kernel(a, c)
    np.testing.assert_array_equal(c, a[::-1])


SIZES = """
from tilelang.cuda.intrinsics.sparse_layout import get_e_factor, get_e_replicate_factor
from tilelang.language.fp8 import determine_fp8_type

sizes = [get_e_factor(a, e) for a in ("float16", T.int8, "float32") for e in ("int8", T.int16, "int32")]
copies = [get_e_replicate_factor("float8_e4m3fn"), get_e_replicate_factor(a_dtype=T.bfloat16)]
is_known = determine_fp8_type() == T.float8_e4m3fn and determine_fp8_type("e5m2") == T.float8_e5m2

@T.prim_func
def k(C: T.Tensor((12,), "int32")):
    with T.Kernel(1, threads=32):
        for i, size in enumerate(sizes + copies + [is_known]):
            C[i] = size
"""


def test_sizes_of_sparse_products_are_computed() -> None:
    c = np.zeros(12, np.int32)
    build(SIZES)(c)
    assert c.tolist() == [8, 16, 32, 8, 16, 32, 4, 8, 16, 1, 2, 1]


@pytest.mark.parametrize(
    ("line", "code", "title", "help_text"),
    [
        ("with T.serial(4):", "misplaced-statement", "T.serial cannot be used here", "write `for i in T.serial(…):`"),
        ("with T.copy(A, A):", "misplaced-statement", "T.copy cannot be used here",
         "`tilec explain T.copy` shows its use"),
        ("if tirx.call_extern('int32', 'f'):", "foreign-call", "tvm.tirx.call_extern cannot be called in a kernel",
         "write the function in the kernel, or its instructions by T.ptx"),
        ("x = T.alloc_local((4,), T.ptr)\n        if bool(x):", "foreign-address", "only a parameter holds addresses",
         "declare a parameter of type T.Tensor((n,), T.ptr), and make tensors of its entries by T.make_tensor"),
        ("if determine_fp8_type('e3m4') == 1:", "wrong-argument",
         'determine_fp8_type: `fp8_format` must be "e4m3" or "e5m2"', None),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_what_to_write(line: str, code: str, title: str, help_text: str | None) -> None:
    imports = "from tvm import tirx\nfrom tilelang.language.fp8 import determine_fp8_type\n"
    assert find_mistake(f"{imports}{LAUNCH}        {line}\n            A[0] = 1\n") == (code, title, help_text)


RAMPS = """
kinds = {T.float16: 1, T.float32: 5}

@T.prim_func
def k(A: T.Tensor((4, 64), "float32"), C: T.Tensor((4, 64), "float32")):
    with T.Kernel(4, threads=32) as bx:
        s = T.alloc_shared((32,), "float32")
        T.copy(A[bx, T.Ramp(32, 1, 32)], s)
        T.copy(s, C[bx, T.Ramp(bx * 8, lanes=32, stride=1)])
        C[bx, 60] = kinds["float32"] + kinds.get("float16")  # a dtype is its name, as a key too
"""


def test_types_of_pytorch_are_for_the_host_program() -> None:
    """What stands behind a kernel in its file may be any Python, unless the kernel uses it."""
    behind = "\n\nfor given in [T.float16, T.float32]:\n    made = given.as_torch()\n    print(made)\n"
    a = np.zeros(8, np.int32)
    build(f"{LAUNCH}        T.clear(A)\n        A[0] = 1\n{behind}")(a)
    assert a[0] == 1
    code, title, _ = find_mistake(f"{LAUNCH}        A[0] = T.cast(1, T.float16.as_torch())\n")
    assert (code, title) == ("foreign-call", "the dtype float16 cannot become one of PyTorch in a kernel")


VECTORS_OF_RAMPS = """
@T.prim_func
def k(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((2, 64), "float32"),
      D: T.Tensor((64,), "float16")):
    with T.Kernel(1, threads=32):
        tid = T.get_thread_binding()
        two = T.Ramp(tid * 2, 1, 2)
        C[0, two] = T.add2(A[two], B[two])
        C[1, T.Ramp(62 - tid * 2, 1, 2)] = 3.0
        before = A[T.Ramp(tid * 2 - 2, 1, 2)]  # 0 outside
        S = T.alloc_shared((64,), "float16")
        S[two] = before
        T.sync_threads()
        D[two] = S[T.Ramp(62 - tid * 2, 1, 2)]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_ramp_indexes_the_lanes_of_a_vector(target: str) -> None:
    a, b, c, d = draw(64), draw(64), np.zeros((2, 64), np.float32), np.zeros(64, np.float16)
    build(VECTORS_OF_RAMPS, target)(a, b, c, d)
    np.testing.assert_array_equal(c, np.stack([a + b, np.full(64, 3, np.float32)]))
    shifted = np.concatenate([[0, 0], a[:-2]]).astype(np.float16)
    np.testing.assert_array_equal(d, shifted.reshape(32, 2)[::-1].reshape(64))


def test_a_ramp_is_a_slice() -> None:
    a, c = draw(4, 64), np.zeros((4, 64), np.float32)
    with pytest.warns(UserWarning, match="no block wrote"):
        build(RAMPS)(a, c)
    for b in range(4):
        np.testing.assert_array_equal(c[b, b * 8 : b * 8 + 32], a[b, 32:])
    assert (c[:, 60] == 6).all()


@pytest.mark.parametrize(
    ("ramp", "title"),
    [
        ("T.Ramp(0, 2, 4)", "T.Ramp: `stride` must be 1: a slice has no gaps"),
        ("T.Ramp(0, 1, 0)", "T.Ramp: `lanes` must be a positive number"),
        ("T.Ramp(0.5, 1, 2)", "T.Ramp: `base` must be an integer"),
    ],
)
def test_a_ramp_with_gaps_is_refused(ramp: str, title: str) -> None:
    assert find_mistake(f"{LAUNCH}        T.copy(A[{ramp}], A[4:8])\n")[:2] == ("wrong-argument", title)


LOGICAL_WARPS = """
@T.prim_func
def k(A: T.Tensor((128,), "int32"), C: T.Tensor((3, 128), "int32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        T.evaluate(A[0])
        C[0, t] = T.get_lane_idx(20) + A[t]
        C[1, t] = T.get_warp_idx(16) * 100 + T.get_warp_idx_sync(64)
        C[2, t] = T.get_warp_group_idx(10, 3)
"""


def test_warps_have_the_size_that_is_given() -> None:
    """Run LOGICAL_WARPS, with warps of 16, 20 and 64 threads, and compare its indices with numpy's."""
    a, c = np.arange(128, dtype=np.int32), np.zeros((3, 128), np.int32)
    build(LOGICAL_WARPS)(a, c)
    t = np.arange(128)
    np.testing.assert_array_equal(c, [t % 20 + a, t // 16 * 100 + t // 64, t // 30])


GIVEN_STATEMENT = """
def fill_by(put, *others, **options):
    assert not others and options.get("n", 1) == 1

    @T.prim_func
    def k(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((64,), "float32")
            put(x, 3)
            T.copy(x, A)

    return k
"""


def test_a_lambda_is_called_as_a_statement() -> None:
    """Run GIVEN_STATEMENT with a lambda given as text, which fills the tile with a number that it adds 1 to."""
    a = np.zeros(64, np.float32)
    build(GIVEN_STATEMENT, put="lambda tile, value: T.fill(tile, value + 1)")(a)
    np.testing.assert_array_equal(a, 4)


ALLOCATED_TOGETHER = """
@T.prim_func
def k(x: T.Tensor((64,), "int64")):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_var(T.int32), T.alloc_var(T.int32, 5)
        s, f = T.alloc_shared((64,), "int64"), T.alloc_fragment((64,), "int64")
        a = 7
        a, b = b, a + 2
        T.fill(s, a)
        T.copy(s, f)
        T.copy(f, x)
        x[a] = b
"""


def test_tiles_and_variables_are_allocated_together() -> None:
    """Run ALLOCATED_TOGETHER, which allocates two names in one assignment, and check what it stores."""
    x = np.zeros(64, np.int64)
    build(ALLOCATED_TOGETHER)(x)
    np.testing.assert_array_equal(x, np.where(np.arange(64) == 5, 9, 5))


DECLARED_IN_THE_BODY = """
def twice(size=48):
    @T.prim_func
    def k(A, B: T.Tensor((size,), "float32"), by):
        A: T.Tensor[[size], T.float32]
        by: T.float32
        with T.Kernel(1, threads=32):
            for i in T.Parallel(size):
                B[i] = by * A[i]

    return k
"""


def test_a_parameter_may_have_its_type_in_the_body() -> None:
    """Run DECLARED_IN_THE_BODY, and check that it is refused without the type of its last parameter."""
    a, b = np.arange(48, dtype=np.float32), np.zeros(48, np.float32)
    build(DECLARED_IN_THE_BODY)(a, b, 3.0)
    np.testing.assert_array_equal(b, 3 * a)
    untyped = DECLARED_IN_THE_BODY.replace("        by: T.float32\n", "")
    assert find_mistake(untyped)[:2] == ("missing-type", "parameter `by` has no type")
