"""Where a box of TMA may begin: what selection proves of a coordinate, and the verifier again by other means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from stages import advanced, work_on

from tilec.analysis.box_starts import Coordinates
from tilec.ir import warp
from tilec.ir.tile import Binary, Const, Expr, Kernel, Select, Var, int32_const, walk_statements
from tilec.ir.types import BOOL, INT32
from tilec.ir.warp_verify import boxes
from tilec.ir.warp_verify.boxes import Definitions, Steps, _ResidueAnalysis, find_definitions
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.select_mechanisms import select_mechanisms
from tilec.support.diagnostics import InternalError
from tilec.target import table as targets

Make = Callable[..., Kernel]

TEXT = """import tilelang.language as T

@T.prim_func
def f(A: T.Tensor((64, 512), "DTYPE"), B: T.Tensor((256, 64), "DTYPE"), C: T.Tensor((128, 512), "DTYPE"),
      at: T.Tensor((2,), "int32"), given: T.int32):
    with T.Kernel(2, threads=128) as bx:
        a = T.alloc_shared((64, 64), "DTYPE")
        b = T.alloc_shared((64, 64), "DTYPE")
        c = T.alloc_fragment((64, 64), "float32")
        read = at[bx]
        T.clear(c)
        PROMISE
        for k in T.Pipelined(4, num_stages=2):
            inner = COLUMN
            T.copy(A[0, k * 64 + inner], a)
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C[bx * 64, COLUMN])
"""


def mechanisms(kernel: Make, column: str, promise: str = "pass", dtype: str = "float16") -> tuple[str, str]:
    """How the columns of A are loaded, and those of C stored."""
    text = TEXT.replace("COLUMN", column).replace("PROMISE", promise).replace("DTYPE", dtype)
    found = select_mechanisms(kernel(text), targets.load_target("sm_90a"), "auto")
    copies = [s for s in walk_statements(found.kernel.body) if isinstance(s, Copy)]
    return str(copies[0].via), str(copies[-1].via)


@pytest.mark.parametrize(
    "column",
    [
        "0",
        "8",
        "-8 + 16",
        "bx * 8",
        "bx * 24 + 16",
        "(bx + 1) // 2 * 8",
        "bx % 2 * 16",
        "(bx * 64 + 3) // 64 * 8",
        "bx * 3 + 8 - bx * 3",
        "T.min(bx * 8, 16)",
        "T.if_then_else(bx == 0, 8, 24)",
        "(bx * 13) & 24",
        "T.max(read, 0) * 8",
        "bx * T.max(given, 0) * 8",
    ],
)
def test_columns_that_are_multiples(kernel: Make, column: str) -> None:
    assert mechanisms(kernel, column) == ("tma", "tma_store")


@pytest.mark.parametrize(
    "column",
    ["-8", "(bx << 3) + 16", "bx * 8 - 8", "read * 8", "given * 16 + 8", "bx * given * 8", "(bx - 1) // 2 * 8"],
)
def test_stores_begin_at_no_negative_column(kernel: Make, column: str) -> None:
    """PTX ISA: loads may, stores may not."""
    assert mechanisms(kernel, column) == ("tma", "registers")


@pytest.mark.parametrize(
    ("row", "by_tma"), [("bx * 64", True), ("(1 - bx) * 64", True), ("bx * 64 - 1", False), ("read", False)]
)
def test_nor_at_a_negative_row(kernel: Make, row: str, by_tma: bool) -> None:
    text = TEXT.replace("C[bx * 64, COLUMN]", f"C[{row}, 0]").replace("COLUMN", "0")
    found = select_mechanisms(
        kernel(text.replace("PROMISE", "pass").replace("DTYPE", "float16")), targets.load_target("sm_90a"), "auto"
    )
    *_, last = (s for s in walk_statements(found.kernel.body) if isinstance(s, Copy))
    assert (last.via == "tma_store") == by_tma


@pytest.mark.parametrize(
    "column",
    [
        "1",
        "4",
        "-1",
        "bx * 4",
        "bx * 64 + 2",
        "bx // 8",
        "bx % 8",
        "T.max(bx * 8, 4)",
        "T.if_then_else(bx == 0, 8, 20)",
        "(bx * 13) & 28",
        "read",
        "given",
        "given * 4",
        "read * 8 + given",
    ],
)
def test_columns_that_may_be_none(kernel: Make, column: str) -> None:
    load, store = mechanisms(kernel, column)
    assert (load in ("cp_async", "registers"), store) == (True, "registers")


@pytest.mark.parametrize(("dtype", "least"), [("float8_e4m3fn", 16), ("float16", 8), ("float32", 4)])
def test_elements_of_other_sizes(kernel: Make, dtype: str, least: int) -> None:
    assert mechanisms(kernel, f"bx * {least}", dtype=dtype)[0] == "tma"
    assert mechanisms(kernel, f"bx * {least // 2}", dtype=dtype)[0] != "tma"


@pytest.mark.parametrize(
    ("column", "promise", "holds"),
    [
        ("bx * 8", "T.assume(bx >= 0)", True),
        ("given + 16", "T.assume(given % 16 == 0 and given >= 0)", True),
        ("given", "T.assume(given % 4 == 0)", False),
        ("given + 4", "T.assume(given % 8 == 0)", False),
        ("read", "T.assume(read % 8 == 0 and read >= 0)", True),
        ("read + given", "T.assume(read % 8 == 0 and given % 8 == 0 and read >= 0 and given >= 0)", True),
        ("read + given", "T.assume(read % 8 == 0)", False),
        ("given", "T.assume(given >= 0); T.assume(given % 2 == 0); T.assume(given % 8 == 0)", True),
        ("given", "T.assume(given % 8 == 0); T.assume(given % 2 == 0); T.assume(given >= 0)", True),
        ("given", "T.assume(given >= 0)", False),
        ("given", "T.assume(given >= 0); T.assume(given % 8 == 0)", True),
        ("given", "T.assume(given % 8 == 0 and 0 <= given)", True),
        ("given", "T.assume(True)", False),
    ],
)
def test_promises(kernel: Make, column: str, promise: str, holds: bool) -> None:
    assert (mechanisms(kernel, column, promise) == ("tma", "tma_store")) == holds


def test_a_promise_ends_with_its_branch(kernel: Make) -> None:
    promise = "if bx == 0:\n            T.assume(given % 8 == 0)"
    assert mechanisms(kernel, "given", promise)[1] == "registers"


# ---- the two proofs --------------------------------------------------------------------------------------------------

VARIABLES = [Var(name) for name in ("bx", "i", "n")]


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    constants = st.sampled_from([-8, 1, 2, 3, 4, 6, 8, 12, 16, 24, 64])
    positive = st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64])
    return st.one_of(
        st.builds(
            lambda op, a, b: Binary(op, a, b, INT32), st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner
        ),
        st.builds(lambda a, c: Binary("mul", a, int32_const(c), INT32), inner, constants),
        st.builds(
            lambda op, a, c: Binary(op, a, int32_const(c), INT32),
            st.sampled_from(["floordiv", "floormod"]),
            inner,
            positive,
        ),
        st.builds(
            lambda op, a, b: Binary(op, a, Binary("max", b, int32_const(1), INT32), INT32),
            st.sampled_from(["floordiv", "floormod"]),
            inner,
            inner,
        ),
        st.builds(lambda a, c: Binary("bitand", a, int32_const(c), INT32), inner, constants),
        st.builds(lambda a, b: Select(Binary("lt", a, b, BOOL), a, b, INT32), inner, inner),
    )


EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from(VARIABLES), st.builds(int32_const, st.integers(-32, 64))), _grown, max_leaves=8
)


def value_of(expr: Expr, values: dict[Var, int]) -> int:
    match expr:
        case Var():
            return values[expr]
        case Const(value=value):
            return int(value)
        case Select(condition=condition, then=a, orelse=b):
            assert isinstance(condition, Binary)
            holds = value_of(condition.a, values) < value_of(condition.b, values)
            return value_of(a if holds else b, values)
        case Binary(op=op, a=a, b=b):
            x, y = value_of(a, values), value_of(b, values)
            match op:
                case "add":
                    return x + y
                case "sub":
                    return x - y
                case "mul":
                    return x * y
                case "min":
                    return min(x, y)
                case "max":
                    return max(x, y)
                case "floordiv":
                    return x // y
                case "floormod":
                    return x % y
                case "bitand":
                    return x & y
    raise AssertionError(expr)


@given(EXPRESSIONS, st.lists(st.tuples(*[st.integers(-100, 1000)] * 3), min_size=3, max_size=3))
def test_both_hold_and_the_verifier_proves_what_selection_does(expr: Expr, points: list[tuple[int, int, int]]) -> None:
    """`i` goes by eights, as the variable of a loop."""
    i = VARIABLES[1]
    divisor = Coordinates({}, {i: 8}, {}).find_divisor(expr)
    loop = warp.Loop(i, int32_const(16), int32_const(1024), 8, ())
    proof = _ResidueAnalysis(find_definitions([loop]))
    for units in (2, 4, 8, 16):
        remainders = proof.possible_remainders(expr, units)
        for bx, at, n in points:
            values = dict(zip(VARIABLES, (bx, 8 * at + 16, n), strict=True))
            assert value_of(expr, values) % units in remainders
        if divisor % units == 0:
            assert remainders == {0}, (units, divisor)


@given(EXPRESSIONS, st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=4, max_size=4))
def test_signs(expr: Expr, points: list[tuple[int, int, int]]) -> None:
    """`bx` counts blocks, `i` is the variable of a loop, and of `n` nothing is known."""
    bx, i, _ = VARIABLES
    known = {bx: (0.0, 40.0)}
    proof = boxes._BoundsAnalysis(Definitions({i: [Steps(int32_const(16), int32_const(337), 8)]}), known)
    low, high = proof.find_bounds(expr)
    for block, at, n in points:
        assert low <= value_of(expr, dict(zip(VARIABLES, (block, 8 * at + 16, n - 20), strict=True))) <= high
    if Coordinates({}, {}, known | {i: (16, 336)}).is_never_negative(expr):
        assert low >= 0


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_wrong_proof_is_refused(kernel: Make, dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinates, "is_never_negative", lambda *_: True)
    text = TEXT.replace("C[bx * 64, COLUMN]", ("C[bx * 64 - 1, 0]", "C[bx * 64, read * 8]")[dimension])
    text = text.replace("COLUMN", "0").replace("PROMISE", "pass").replace("DTYPE", "float16")
    with pytest.raises(InternalError, match=f"TmaStore of .* may begin below 0 in dimension {dimension} of C"):
        advanced(work_on(kernel(text)), "lint-warp")


def test_definitions() -> None:
    """A variable that several roles define has what any of them gives it."""
    x, k = Var("x"), Var("k")
    by = Binary("mul", k, int32_const(8), INT32)
    lets = [warp.Let(x, by), warp.Let(x, Binary("add", by, int32_const(4), INT32))]
    assert _ResidueAnalysis(find_definitions([lets[0]])).possible_remainders(x, 8) == {0}
    assert _ResidueAnalysis(find_definitions([*lets])).possible_remainders(x, 8) == {0, 4}
    own = _ResidueAnalysis(find_definitions([warp.Let(x, Binary("add", x, int32_const(8), INT32))]))
    assert own.possible_remainders(x, 8) == set(range(8))
