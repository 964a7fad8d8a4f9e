from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.ir.text import show_region
from tilec.ir.tile import Kernel, TileOp
from tilec.ops import registry
from tilec.ops.functions.scalar import FUNCTIONS
from tilec.ops.language.arithmetic import apply_binary, apply_logical, apply_select
from tilec.ops.language.signature import Argument, Parameter, Signature, bind_arguments, find_nearest_name
from tilec.ops.language.values import Value
from tilec.ops.products.gemm import get_gemm_shape
from tilec.ops.registry import Effects, Operation, Spelling
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.source import Span

Build = Callable[..., Kernel]
OPERATIONS = [op for op in registry.list_operations() if op.name != "refused"]  # which no kernel can write
TESTS = Path(__file__).parents[1]
ERRORS = TESTS / "errors"

CALL, FIRST, SECOND = Span(1, 1, 1, 9), Span(1, 3, 1, 4), Span(1, 5, 1, 6)


def test_the_operations() -> None:
    assert [op.name for op in OPERATIONS] == [
        *(
            "alloc_barrier",
            "arrive",
            "atomic",
            "await_barrier",
            "barrier",
            "commit",
            "copy",
            "cp_async_arrive",
            "device_assert",
            "expect_tx",
            "fence",
            "fill",
            "finalize_reducer",
            "gather4",
            "gemm",
            "im2col",
            "named_arrive",
            "reduce",
            "reducer_init",
            "rendezvous",
            "scale_copy",
            "scaled_gemm",
            "scan",
            "scatter4",
            "send",
            "set_registers",
            "tensor_arrive",
            "transpose",
            "try_cancel",
        ),
        "wait",
        "wait_wgmma",
    ]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_every_operation_has_docs_and_an_error_case(operation: Operation) -> None:
    kernels = "\n".join(path.read_text(encoding="utf-8") for path in ERRORS.glob("*.tl"))
    assert operation.spellings
    for spelling in operation.spellings:
        doc = inspect.cleandoc(spelling.doc)
        assert doc.split("\n")[0].endswith("."), f"{spelling.signature.name} has no opening sentence"
    assert any(f"{spelling.signature.name}(" in kernels for spelling in operation.spellings)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_every_operation_is_emulated_and_printed(operation: Operation) -> None:
    kernels = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("kernels/*.tl"))
    for spelling in operation.spellings:
        assert f"{spelling.signature.name}(" in kernels, f"no kernel in tests/kernels has {spelling.signature.name}"
    printed = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("golden/tile/*.txt"))
    assert re.search(rf"^ +{operation.name}\b", printed, re.MULTILINE), (
        f"no kernel in tests/golden/tile has {operation.name}"
    )


def test_every_scalar_function_has_a_doc() -> None:
    assert all(function.doc and not function.doc.endswith(".") for function in FUNCTIONS.values())


def test_facets_are_attached_by_name() -> None:
    def check(call: object) -> TileOp:
        raise AssertionError

    class One(TileOp):
        name = "one"

    operation = Operation(
        One, (Spelling(Signature("T.one", ()), "One.", check),), lambda op: Effects((), ()), lambda op, env: None
    )
    with pytest.raises(InternalError):
        _ = operation.lower
    operation.facets["lower"] = print
    assert operation.lower is print


# ---- effects ---------------------------------------------------------------------------------------------------------

TILES = """a = T.alloc_shared((16, 32), "float16")
b = T.alloc_shared((8, 32), "float16")
c = T.alloc_fragment((16, 8), "float32")
r = T.alloc_fragment((16,), "float32")
"""


@pytest.mark.parametrize(
    ("call", "reads", "writes"),
    [
        ("T.copy(a[0:8, :], b)", ["a[0:+8, :]"], ["b[:, :]"]),
        ("T.fill(c, 1)", [], ["c[:, :]"]),
        ("T.clear(c[2, :])", [], ["c[2, :]"]),
        ("T.gemm(a, b, c, transpose_B=True)", ["a[:, :]", "b[:, :]", "c[:, :]"], ["c[:, :]"]),
        ("T.gemm(a, b, c, transpose_B=True, clear_accum=True)", ["a[:, :]", "b[:, :]"], ["c[:, :]"]),
        ("T.atomic_add(a, b[0:8, :])".replace("a, b", "a[0:8, :], b"), ["b[:, :]", "a[0:+8, :]"], ["a[0:+8, :]"]),
        (
            'd = T.alloc_shared((32, 16), "float32")\nT.transpose(a, d)',
            ["a[:, :]"],
            ["d[:, :]"],
        ),
        ("T.cumsum(a, dim=1)", ["a[:, :]"], ["a[:, :]"]),
        ("T.sync_threads()", [], []),
        ("T.fence_proxy_async()", [], []),
        ("T.ptx_commit_group()", [], []),
        ("T.ptx_wait_group(1)", [], []),
        ("T.reduce_max(c, r)", ["c[:, :]"], ["r[:]"]),
        ("T.reduce_sum(c, r, dim=-1, clear=False)", ["c[:, :]", "r[:]"], ["r[:]"]),
    ],
)
def test_effects(call: str, reads: list[str], writes: list[str], body: Build) -> None:
    (op,) = body(TILES + call).body
    assert isinstance(op, TileOp)
    effects = registry.get_operation(op.name).effects(op)
    assert [show_region(r) for r in effects.reads] == reads
    assert [show_region(r) for r in effects.writes] == writes


def test_attributes(body: Build) -> None:
    (op,) = body(TILES + "T.gemm(a, b, c, False, True, T.GemmWarpPolicy.FullRow)").body
    assert isinstance(op, TileOp)
    assert op.attributes == (
        ("clear_accum", False),
        ("policy", "full_row"),
        ("transpose_A", False),
        ("transpose_B", True),
    )
    assert get_gemm_shape(op) == (16, 8, 32)
    (op,) = body(TILES + "T.reduce_absmax(c, r, dim=-1)").body
    assert isinstance(op, TileOp)
    assert op.attributes == (("clear", True), ("dim", 1), ("kind", "absmax"))


# ---- arguments -------------------------------------------------------------------------------------------------------

SIGNATURE = Signature(
    "T.f", (Parameter("a"), Parameter("b", 2), Parameter("c", None, supported=False, keyword_only=True))
)


def argument(value: Value) -> Argument:
    return Argument(value, FIRST)


def test_binding_follows_python() -> None:
    call = bind_arguments(SIGNATURE, [argument(1)], {}, CALL)
    assert (call["a"].value, call["b"].value) == (1, 2)
    assert call.is_given("a") and not call.is_given("b")
    assert bind_arguments(SIGNATURE, [], {"b": argument(3), "a": argument(1)}, CALL)["b"].value == 3
    assert bind_arguments(SIGNATURE, [argument(1)], {"c": argument(None)}, CALL)["c"].value is None
    assert str(SIGNATURE) == "T.f(a, b=)"


@pytest.mark.parametrize(
    ("positional", "keywords", "code"),
    [
        ([], {}, "missing-argument"),
        ([1, 2, 3], {}, "too-many-arguments"),
        ([1], {"a": 1}, "duplicate-argument"),
        ([1], {"d": 1}, "unknown-keyword"),
        ([1], {"c": 1}, "unsupported-keyword"),
    ],
)
def test_binding_refuses(positional: list[Value], keywords: dict[str, Value], code: str) -> None:
    with pytest.raises(CompileError) as caught:
        bind_arguments(
            SIGNATURE, [argument(v) for v in positional], {k: argument(v) for k, v in keywords.items()}, CALL
        )
    assert caught.value.diagnostics[0].code == code


def test_nearest_looks_past_case() -> None:
    assert find_nearest_name("Gemm", ["gemm", "copy"]) == "gemm"
    assert find_nearest_name("zzz", ["gemm", "copy"]) is None


def test_static_values_stay_python_values() -> None:
    a, b = Argument(7, FIRST), Argument(2.0, SECOND)
    assert apply_binary("/", a, b, CALL) == 3.5
    assert apply_binary("min", a, b, CALL) == 2.0
    assert apply_select(Argument(True, CALL), a, b, CALL) == 7
    assert apply_logical("and", True, False) is False


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_every_operation_has_every_facet(operation: Operation) -> None:
    assert callable(operation.demand) and callable(operation.lower)
