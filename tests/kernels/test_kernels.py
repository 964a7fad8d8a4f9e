"""Whole kernels: the PTX that ships, run by the emulator, against numpy, and what that PTX looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from harness import FORMS, HERE, SAMPLES, agrees, built

from tilec.support.options import Strategy, Value

forms = pytest.mark.parametrize(("target", "strategy"), FORMS, ids=lambda v: str(v))


def test_every_strategy_is_covered() -> None:
    assert {s for _, s in FORMS} | {"warp-specialize"} == set(get_args(Strategy))


# ---- gemm: types, stages -------------------------------------------------------------------------------------------


def multiplied(*targets: str) -> Iterator[dict[str, Value]]:
    """Every type that tensor cores multiply, stored along K on both sides and on none."""
    types = [("float16", "float16"), ("float32", "float32"), ("int8", "int32"), ("uint8", "int32"), ("float64",) * 2]
    if targets == ("sm_90a",):
        types = [("float8_e4m3fn", "float32"), ("float8_e5m2", "float32"), ("float8_e4m3fn", "float16")]
    for dtype, accumulator in types:
        wide = {"bK": 32} if dtype == "float64" else {}
        for transposed in (False, True) if accumulator != "float16" or dtype == "float16" else (False,):
            yield {
                "dtype": dtype, "other": dtype, "accumulator": accumulator, "out": accumulator, "tA": transposed,
                "tB": not transposed, "clear": transposed and dtype == "uint8", **wide,
            }  # fmt: skip
    if targets:
        yield {"dtype": "float8_e4m3fn", "other": "float8_e5m2", "tB": True}


def named(defines: dict[str, Value]) -> str:
    return "-".join(f"{k}{v}" for k, v in defines.items())


@forms
@pytest.mark.parametrize("defines", list(multiplied()), ids=named)
def test_gemm_types(target: str, strategy: Strategy, defines: dict[str, Value]) -> None:
    made = agrees(HERE / "gemm_types.tl", target, strategy, **defines)
    assert ("wgmma" in made.ptx) == (target == "sm_90a" and defines["dtype"] != "float64")


@pytest.mark.parametrize("strategy", ["auto", "unspecialize", "none"])
@pytest.mark.parametrize("defines", list(multiplied("sm_90a")), ids=named)
def test_gemm_of_8_bit_floats(strategy: Strategy, defines: dict[str, Value]) -> None:
    made = agrees(HERE / "gemm_types.tl", "sm_90a", strategy, **defines)
    assert "wgmma" in made.ptx


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_gemm_num_stages(target: str, stages: int) -> None:
    made = agrees(SAMPLES / "gemm.tl", target, M=128, N=128, K=448, block_K=32, num_stages=stages)
    assert all(d <= stages for s in made.schedules for d in s.depth)


def test_num_stages_changes_the_emitted_rings() -> None:
    depths = []
    for stages in (1, 2, 3, 4):
        _, made = built(SAMPLES / "gemm.tl", "sm_90a", num_stages=stages)
        (ring,) = made.program.rings
        assert (ring.depth,) == made.schedules[0].depth
        assert made.ptx.count("mbarrier.init") == 2 * ring.depth
        depths.append(ring.depth)
    assert depths == [1, 2, 3, 4]


# ---- other shapes of program -----------------------------------------------------------------------------------------


@forms
@pytest.mark.parametrize(("outer", "inner"), [(1, 2), (2, 1), (2, 2), (3, 3), (2, 4)])
def test_nested_pipelines(target: str, strategy: Strategy, outer: int, inner: int) -> None:
    """Blocks with each trip count of both loops from 0 to one more than there are versions."""
    made = agrees(HERE / "nested_gemm.tl", target, strategy, counts=max(outer, inner) + 2, outer=outer, inner=inner)
    depths = {ring.name: ring.depth for ring in made.program.rings}
    # Of the outer loop's tiles, the one that is loaded or the one that is stored needs a second version, where a role
    # is not held by what it loads for itself.
    versions = min(outer, 2) if len(made.program.roles) > 1 else 1
    assert strategy == "none" or (depths.pop("A_s+B_s"), max(depths.values())) == (inner, versions)


@forms
@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_blocks_of_queries(target: str, strategy: Strategy, causal: bool) -> None:
    """The outer loop's tile is read inside the inner one, which with a causal mask has its iterations from the outer
    one."""
    made = agrees(HERE / "nested_attention.tl", target, strategy, causal=causal)
    assert strategy == "none" or len(made.schedules) == 2


@forms
@pytest.mark.parametrize(
    "defines",
    [
        {},
        {"causal": True},
        {"rows": False},
        {"dtype": "bfloat16", "num_stages": 1},
        {"bM": 128, "threads": 256, "causal": True},
    ],
    ids=named,
)
def test_attention_through_registers(target: str, strategy: Strategy, defines: dict[str, Value]) -> None:
    """The first product's accumulator, cast, is the second one's A: no shared tile between them."""
    made = agrees(HERE / "flash.tl", target, strategy, **defines)
    tiles = {t.buffer.name.rstrip("_0123456789") for t in made.program.shared}  # parts of one are numbered
    assert tiles <= {"Q_shared", "K_shared", "V_shared", "O_shared"}


@forms
@pytest.mark.parametrize("form", [0, 1, 2])
def test_manual_schedule(target: str, strategy: Strategy, form: int) -> None:
    made = agrees(HERE / "manual.tl", target, strategy, form=form)
    if strategy != "none":
        assert [s.stage for s in made.schedules] == [[(0, 0, 1), (0, 1, 3), (0, 0, 0)][form]]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("form", "depth"), [(0, 2), (0, 4), (1, 5), (2, 1), (2, 3)])
def test_manual_schedule_with_a_depth_of_its_own(target: str, form: int, depth: int) -> None:
    made = agrees(HERE / "manual.tl", target, strict=False, form=form, depth=depth)
    assert [w.code for w in made.warnings] == ["depth-override"]
    assert {d for s in made.schedules for d in s.depth} == {depth}


@forms
@pytest.mark.parametrize("stages", [0, 1, 3])
def test_scalars_that_a_pipeline_carries(target: str, strategy: Strategy, stages: int) -> None:
    made = agrees(HERE / "carried.tl", target, strategy, num_stages=stages)
    if stages == 3 and strategy != "none":
        bind, variable = made.schedules
        assert bind.stage[1] == bind.stage[2] and bind.stage[3] > 0
        assert variable.stage[0] == 0 < variable.stage[1]


@forms
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64"])
def test_atomics_on_elements(target: str, strategy: Strategy, dtype: str) -> None:
    made = agrees(HERE / "atomics.tl", target, strategy, dtype=dtype)
    assert ("red.relaxed.gpu.global.add.v4.f32" in made.ptx) == (dtype == "float32" and target == "sm_90a")


@pytest.mark.parametrize("order", ["acquire", "release", "acq_rel", "seq_cst"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_atomics_in_every_order(target: str, order: str) -> None:
    made = agrees(HERE / "atomics.tl", target, order=order)
    assert ("fence.sc.gpu" if order == "seq_cst" else f".{order}.gpu.global") in made.ptx


@forms
@pytest.mark.parametrize("how", range(5))
@pytest.mark.parametrize("out", ["float32", "float16", "bfloat16"])
def test_atomics_on_tiles(target: str, strategy: Strategy, how: int, out: str) -> None:
    """From the accumulator, from a shared tile, element by element, as extremes, and in the pipelined loop."""
    made = agrees(HERE / "atomic_tile.tl", target, strategy, how=how, out=out)
    assert ("cp.reduce.async.bulk.tensor" in made.ptx) == (target == "sm_90a" and how in (0, 1, 4))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_opt_levels(target: str) -> None:
    """The levels that make code make it of the same schedule, of a product that is one step along K, so that the last
    has no fragments to load ahead. Where kernels may begin early, they do at the last."""
    shape: dict[str, Value] = {"M": 128, "N": 128, "K": 96, "block_K": 16}
    second, third = (agrees(SAMPLES / "gemm.tl", target, opt_level=level, **shape) for level in (2, 3))
    assert second.schedules == third.schedules != ()
    early = ["griddepcontrol" in made.ptx for made in (second, third)]
    assert early == [False, target == "sm_90a"] and (early[1] or second.ptx == third.ptx)
    assert len(third.program.roles) == (2 if target == "sm_90a" else 1)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_pipelined_loop_may_run_serially(target: str) -> None:
    made = agrees(SAMPLES / "gemm.tl", target, "none", M=128, N=128, K=192)
    assert made.schedules == ()
    assert len(made.program.roles) == 1


@pytest.mark.parametrize(("n", "elements"), [(192, 2 * 192 // 32), (100, 100)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_threads_with_the_same_row_share_its_elements(target: str, n: int, elements: int) -> None:
    """The threads that hold a row share 192 elements of it; 100 do not divide by them."""
    made = agrees(HERE / "shared_out.tl", target, N=n)
    assert made.ptx.count("red.") == elements


def test_doubles_in_registers_are_taken_one_by_one() -> None:
    """A run along K of an unpacked operand has more elements than a register; a double fills two by itself."""
    agrees(HERE / "gemm_registers.tl", "sm_80", dtype="float64", accumulator="float64", bK=32)


@forms
def test_softmax_of_a_product(target: str, strategy: Strategy) -> None:
    """Division must not be a subroutine here: a call would serialise the wgmma."""
    made = agrees(HERE / "gemm_softmax.tl", target, strategy)
    assert made.warnings == ()


@forms
def test_scalars_that_other_threads_wrote(target: str, strategy: Strategy) -> None:
    made = agrees(HERE / "scalar_race.tl", target, strategy)
    assert made.ptx.count("bar.sync") >= 3


# ---- packed operands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_operands_unpacked_between_tiles(target: str) -> None:
    """Lanes that share a byte share its load, four bytes at once, and groups share their scale."""
    made = agrees(HERE / "dequantise.tl", target, entry="through_shared")
    loads = [line.split()[0] for line in made.ptx.splitlines() if line.strip().startswith("ld.shared")]
    assert set(loads) <= {"ld.shared.b32", "ld.shared.b16"}
    assert loads.count("ld.shared.b32") == loads.count("ld.shared.b16")
