"""An operation that nobody has thought of goes all the way, and says what is particular about it in one file: this one.

T.toy_scale multiplies a tile by a number. No pass knows it; what passes ask of an operation is answered below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from tilec.driver.build import Build, build_kernel, load_kernel
from tilec.driver.emulation import emulate
from tilec.driver.observer import Observer
from tilec.ir import warp
from tilec.ir.expr import cast_expr
from tilec.ir.operations import operations
from tilec.ir.operations.interfaces import Axis
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Binary, Load, Parallel, Store, TileOp, Var
from tilec.ops import registry
from tilec.ops.form import OnChip, Scalar, verify_same_dtype, verify_same_shape
from tilec.ops.language.signature import Call, Parameter, Signature, as_expr
from tilec.ops.lowering import Demand, LoweringContext, make_demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, attach_facet, register_operation
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

# ---- the operation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToyScale(TileOp):
    """Each element of `source` times `factor`, to `destination`."""

    name = "toy_scale"
    order_is_known = True
    fragments_lie = "alike"
    source: OnChip
    destination: OnChip
    factor: Scalar

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(((0, d), (1, d))) for d in range(len(self.source.extent)))


def _check(call: Call) -> ToyScale:
    source, destination = call.read_region("src"), call.read_region("dst")
    return ToyScale(source, destination, as_expr(call["factor"], source.buffer.dtype), span=call.span)


def _effects(op: ToyScale) -> Effects:
    return Effects((op.source,), (op.destination,))


def _reference(op: ToyScale, env: Environment) -> None:
    env.write(op.destination, env.read(op.source) * np.float32(env.scalar(op.factor)))


def _make_known() -> None:
    spelling = Spelling(
        Signature("T.toy_scale", (Parameter("src"), Parameter("dst"), Parameter("factor"))), "Scale a tile.", _check
    )
    register_operation(Operation(ToyScale, (spelling,), _effects, _reference))

    @attach_facet(ToyScale, "demand")
    def price(op: ToyScale, context: LoweringContext) -> tuple[Demand, ...]:
        return (make_demand("elementwise", ops=1, elements=math.prod(op.source.extent), threads=context.threads),)

    @attach_facet(ToyScale, "lower")
    def lower(op: ToyScale, context: LoweringContext) -> tuple[warp.Operation, ...]:
        source, destination = op.source.buffer, op.destination.buffer
        at = tuple(Var(f"%e{d}") for d in range(len(source.shape)))
        value = Binary("mul", Load(source, at), cast_expr(op.factor, source.dtype), source.dtype)
        nest = Parallel(at, source.shape, (Store(destination, at, value, op.span),), op.span)
        return (warp.Elementwise(nest, context.fragments[source.name], cursors=context.cursors, span=op.span),)

    @attach_facet(ToyScale, "agrees")
    def fits(op: ToyScale) -> Iterator[str]:
        yield from verify_same_shape(op.source, op.destination)
        yield from verify_same_dtype(op.source, op.destination)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Other tests walk the registry: it is known here alone."""
    _make_known()
    yield
    for names in (vars(registry)["_OPERATIONS"], vars(registry)["_SPELLINGS"], vars(operations)["_CLASSES"]):
        names.pop("toy_scale")


# ---- on its way ------------------------------------------------------------------------------------------------------

SCALED = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64, 256), "float32"), B: T.Tensor((64, 256), "float32")):
    with T.Kernel(1, threads=128) as bx:
        tile = T.alloc_shared((64, 32), "float32")
        held = T.alloc_fragment((64, 32), "float32")
        scaled = T.alloc_fragment((64, 32), "float32")
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, 32 * k], tile)
            T.copy(tile, held)
            T.toy_scale(held, scaled, 0.5)
            T.copy(scaled, B[0, 32 * k])
"""


ATTENDING = """
import tilelang.language as T

@T.prim_func
def kernel(Q: T.Tensor((64, 64), "float16"), K: T.Tensor((256, 64), "float16"), O: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        q = T.alloc_shared((64, 64), "float16")
        keys = T.alloc_shared((64, 64), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        scaled = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        out = T.alloc_fragment((64, 64), "float32")
        T.annotate_subtile({scores: (1, 2)})
        T.copy(Q, q)
        T.clear(out)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(K[64 * k, 0], keys)
            T.gemm(q, keys, scores, transpose_B=True, clear_accum=True)
            T.toy_scale(scores, scaled, 0.125)
            T.copy(scaled, weights)
            T.gemm(weights, keys, out)
        T.copy(out, O)
"""


def _agrees(made: Build) -> None:
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    for result in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
        assert result.matches, f"{result.name} is {result.found}, expected {result.expected}"


def _scheduled(made: Build) -> list[str]:
    """What the operations of the only pipelined loop are called."""
    (loop,) = json.loads(made.trace)["tilec"]["loops"]
    return [op["name"] for op in loop["ops"]]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_it_is_pipelined_and_computes_what_its_reference_says(target: str) -> None:
    """Parsed, laid out, priced, scheduled, coded and run."""
    made = build_kernel(SourceFile("toy.tl", SCALED), CompileOptions(target=target), Observer())
    assert "toy_scale held, scaled" in _scheduled(made)
    assert max(max(schedule.depth) for schedule in made.schedules) > 1
    _agrees(made)


def test_it_is_done_part_by_part() -> None:
    made = build_kernel(SourceFile("toy.tl", ATTENDING), CompileOptions(target="sm_90a"), Observer())
    assert sum(name.startswith("toy_scale") for name in _scheduled(made)) == 2
    _agrees(made)


def test_who_works_on_two_fragments_says_how_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layout is guessed."""
    monkeypatch.setattr(ToyScale, "fragments_lie", None)
    with pytest.raises(InternalError, match="does not say how its fragments lie"):
        build_kernel(SourceFile("toy.tl", SCALED), CompileOptions(target="sm_90a"), Observer())


def test_who_does_not_say_how_it_is_cut_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyScale, "axes", ())
    with pytest.raises(CompileError, match="cannot be split into 2 parts"):
        build_kernel(SourceFile("toy.tl", ATTENDING), CompileOptions(target="sm_90a"), Observer())


def test_its_text_is_read_back() -> None:
    options = CompileOptions(target="sm_90a")
    kernel = load_kernel(SourceFile("toy.tl", SCALED), options, Observer())
    text = print_kernel(kernel)
    assert "toy_scale held[:, :], scaled[:, :], factor=float32(0.5)" in text
    assert print_kernel(read_kernel(text)) == text
    load_kernel(SourceFile("toy.tile", text), options, Observer())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("factor=float32(0.5)", "", "toy_scale: 'factor' is missing"),
        ("factor=float32(0.5)", "factor=2", "toy_scale.factor: expected an expression"),
        ("held[:, :], scaled", "A[0:+64, 0:+32], scaled", "is global, expected shared or fragment"),
        ("held[:, :], scaled", "held[0:+32, :], scaled", "have different shapes"),
    ],
)
def test_its_text_is_verified(old: str, new: str, says: str) -> None:
    options = CompileOptions(target="sm_90a")
    text = print_kernel(load_kernel(SourceFile("toy.tl", SCALED), options, Observer()))
    line = next(line for line in text.splitlines() if "toy_scale" in line)
    with pytest.raises(CompileError, match="this") as caught:
        load_kernel(
            SourceFile("toy.tile", text.replace(line, line.replace(old, new).rstrip(", "))), options, Observer()
        )
    assert says in caught.value.diagnostics[0].title
