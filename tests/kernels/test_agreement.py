"""Whole kernels whose PTX, run by the emulator, agrees with the tile-level reference: one table of them.

A kernel about which a test asserts more than that has a function of its own in another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from harness import FORMS, HERE, SAMPLES, Form, agrees

from tilec.support.options import Strategy, Value

Constants = Mapping[str, Value]

AMPERE: tuple[Form, ...] = (("sm_80", "auto"),)
HOPPER: tuple[Form, ...] = (("sm_90a", "auto"),)
BLACKWELL: tuple[Form, ...] = (("sm_100a", "auto"),)


@dataclass(frozen=True, eq=False)
class Row:
    """A kernel, the sets of constants that it is built with, and the targets and strategies that it is built for.

    The constant `entry` names a kernel of a file that has several. `seeds` and `strict` are those of `agrees`."""

    name: str
    kernel: Path
    constants: tuple[Constants, ...] = ({},)
    forms: tuple[Form, ...] = FORMS
    seeds: int = 1
    strict: bool = True


def each(**values: Iterable[Value]) -> tuple[Constants, ...]:
    """Return every combination of the values of the constants."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


TRANSPOSED: tuple[Constants, ...] = (
    {},
    {"out": "float16", "threads": 256, "bN": 128, "N": 256},
    {"bK": 32, "K": 160},
    {"bK": 128, "K": 384},
    {"M": 128, "N": 96, "bM": 64, "bN": 96},
    {"bM": 128, "bN": 32, "N": 40},
)
OF_REGISTERS: tuple[Constants, ...] = (
    {},
    {"policy": 1},
    {"policy": 2, "N": 128, "bN": 64},
    {"bM": 128, "threads": 256, "tB": True},
    {"dtype": "bfloat16"},
    {"dtype": "float32"},
    {"dtype": "float32", "tB": True},
    {"dtype": "int8", "accumulator": "int32", "tB": True},
    {"dtype": "float64", "accumulator": "float64", "bK": 32},
    {"accumulator": "float16"},
)
OF_TWO_FRAGMENTS: tuple[Constants, ...] = (
    {"dtype": "bfloat16", "tB": True},
    {"dtype": "float16", "accumulator": "float16"},
    {"dtype": "float32"},
    {"dtype": "float64", "accumulator": "float64"},
    {"dtype": "int8", "accumulator": "int32", "kI": 32, "bK": 96},
    {"dtype": "uint8", "accumulator": "int32", "kI": 32, "bK": 96, "tB": True},
)
REDUCED: tuple[Constants, ...] = (
    {}, {"N": 1000}, {"N": 7}, {"threads": 32}, {"threads": 256, "N": 512}, {"dtype": "float16"},
)  # fmt: skip
REDUCED_BY_EVERY_KIND: tuple[Constants, ...] = (
    {},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "threads": 32},
    {"dtype": "float64"},
    {"dtype": "int32", "shared": True, "threads": 256},
    {"dtype": "int8", "bits": True},
    {"dtype": "uint16", "bits": True},
    {"dtype": "uint64", "bits": True},
    {"dtype": "int64"},
)

# Of each row the default tier runs one form (tests/tiers.py).
TABLE = (
    # ---- samples ----
    Row("vector_add", SAMPLES / "vector_add.tl", ({"N": 5000}, {"N": 1001, "dtype": "float64"})),
    Row("gemm_bias_relu", SAMPLES / "gemm_bias_relu.tl", each(M=[256], N=[256], K=[256])),
    Row("softmax", SAMPLES / "softmax.tl", each(M=[10])),
    # One iteration up to one more than the deepest ring has versions, whole and partial last tiles.
    Row("gemm_trip_counts", SAMPLES / "gemm.tl", each(M=[128], N=[128], K=[1, 63, 64, 128, 192, 256, 320])),
    # Sizes that all tiles divide or none does; rows of 2, 4 and 16 bytes' alignment.
    Row(
        "gemm_sizes", SAMPLES / "gemm.tl",
        (
            {"M": 256, "N": 256, "K": 256}, {"M": 200, "N": 136, "K": 104}, {"M": 100, "N": 77, "K": 33},
            {"M": 1, "N": 8, "K": 64}, {"M": 129, "N": 257, "K": 66},
        ),
    ),
    Row(
        "gemm_wide_tile", SAMPLES / "gemm.tl",
        each(M=[256], N=[512], K=[320], block_N=[256], num_stages=[3], dtype=["float16", "bfloat16"]),
    ),
    Row("flash_trip_counts", SAMPLES / "flash_attention.tl", each(S=[128, 256, 384, 512], heads=[1]), HOPPER),
    # The trip count is known at run time only: one to four here.
    Row("flash_causal", SAMPLES / "flash_attention.tl", each(S=[512], causal=[True], heads=[1]), HOPPER),
    # ---- products ----
    Row(
        "gemm_transposed", HERE / "gemm_transposed.tl",
        tuple({**sides, **tile} for sides in each(tA=[False, True], tB=[False, True]) for tile in TRANSPOSED),
    ),
    # Of the forms above only those of 256 threads without roles show that a version is given back too late.
    Row(
        "gemm_of_256_threads", HERE / "gemm_transposed.tl", ({"tA": False, "tB": False, **TRANSPOSED[1]},),
        (("sm_90a", "unspecialize"),),
    ),
    Row("gemm_from_registers", HERE / "gemm_registers.tl", OF_REGISTERS),
    Row("gemm_of_two_fragments", HERE / "register_factors.tl", OF_TWO_FRAGMENTS, AMPERE),
    # One tile, turned once for each of two products, in a loop and behind it.
    Row(
        "gemm_turned", HERE / "gemm_turned.tl", each(dtype=["int8", "float32"], threads=[128, 256]), HOPPER,
        strict=False,
    ),
    # Random metadata is legal.
    Row(
        "gemm_sparse", HERE / "gemm_sparse.tl",
        (
            {"dtype": "bfloat16", "per_element": 16, "transpose_B": True},
            {"dtype": "float32", "per_element": 8, "transpose_B": True},
        ),
        HOPPER, strict=False,
    ),
    Row(
        "hints", HERE / "hints.tl",
        ({}, {"order": "column", "panel": 3}, {"M": 64, "N": 64}, {"outside": -1.0, "K": 32}),
    ),
    # What two elements are unpacked from lies in the thread that has both.
    Row("unpacked_in_registers", HERE / "dequantise.tl", each(entry=["in_registers"]), AMPERE + HOPPER),
    # Two products, a softmax between them, accumulators that ordinary code reads and scales.
    Row("attention", HERE / "attention.tl", each(num_stages=[1, 2, 3])),
    # ---- pipelines ----
    # Blocks with 0, 1, 2 and 3 iterations, the pipeline inside a serial loop: positions and phases carry over.
    Row("triangular", HERE / "triangular.tl"),
    # Nested pipelines whose iterations are known in advance.
    Row(
        "nested_gemm", HERE / "nested_gemm.tl",
        tuple(
            {"products": products, "trips": trips, "outer": 3, "inner": 3}
            for products, trips in ((1, 1), (2, 1), (1, 4), (4, 2))
        ),
    ),
    # Waits in guarded pieces of a pipeline hold only where the guard does. There are 1 to 4 iterations.
    Row("fewer_iterations_than_stages", HERE / "short.tl", seeds=4),
    Row("few_iterations", HERE / "made_anew.tl", each(how=[4], K=[64, 128, 192, 256, 320]), AMPERE + HOPPER),
    # Where an iteration would begin best for the products, a scalar still has a user.
    Row("no_scalar_is_parted_from_its_users", HERE / "scalar_between_products.tl", each(steps=[2, 5]), HOPPER),
    # Where an iteration would begin best for the loads, one of several turns at the tensor cores goes on.
    Row("no_turn_is_cut_in_two", HERE / "operand_turns.tl", each(stages=[2, 4]), HOPPER),
    # A schedule given by hand may have a tile that nobody reads written in any order.
    Row(
        "written_never_read", HERE / "written_never_read.tl", each(trips=[1, 2, 5]), AMPERE + HOPPER + BLACKWELL,
        strict=False,
    ),
    Row("variables", HERE / "variables.tl", each(num_stages=[0, 1, 2]), seeds=2),
    # Replayed, scheduled and materialised scalars, for 0 to 5 iterations.
    Row("binds", HERE / "binds.tl", each(case=[0, 1, 2, 3, 4, 6, 7, 8]), seeds=3),
    Row("binds_with_a_warning", HERE / "binds.tl", each(case=[5]), seeds=3, strict=False),
    # while, break and continue, around pipelines and inside them.
    Row("loops_that_data_end", HERE / "control.tl", each(case=range(7)), seeds=3),
    # Tiles that are more than a ring.
    Row("reuse", HERE / "reuse.tl", each(how=range(4))),
    # ---- roles and clusters ----
    Row("cluster_barriers", HERE / "cluster_barriers.tl", each(trips=[1, 2, 4]), HOPPER),
    # A block that divides nothing among roles has any number of threads.
    Row("roles_alone", HERE / "roles.tl", each(entry=["alone"], threads=[64, 256]), HOPPER),
    # Each thread has its index in the block.
    Row("roles_by_index", HERE / "roles.tl", each(entry=["by_index"]), AMPERE + HOPPER),
    # The reference refuses every request for another block's work, and each block computes its own part.
    Row("cluster_launch", HERE / "cluster_launch.tl", each(entry=["two_roles"], M=[64], N=[128]), BLACKWELL),
    # ---- loops ----
    # T.serial, T.unroll, T.Parallel, T.vectorized and T.Persistent with what each can be given.
    Row("loops", HERE / "loops.tl", each(case=range(11)), seeds=2),
    # Every tile of a persistent loop is visited once.
    Row(
        "persistent_loops", HERE / "loops.tl",
        tuple(
            {"case": case, "group": group, "waves": waves}
            for group, waves in ((1, 1), (2, 7), (8, 4), (100, 30))
            for case in (5, 6, 9)
        ),
        AMPERE,
    ),
    Row("unrolled", HERE / "unrolled.tl"),
    # Values that a nest overwrites.
    Row("nests", HERE / "nests.tl"),
    # ---- elements, reductions and shared tiles ----
    Row("elementwise", HERE / "elementwise.tl", each(dtype=["float32", "float16", "bfloat16", "int32", "int8"])),
    Row("elementwise_on_8_bits", HERE / "elementwise.tl", each(dtype=["float8_e4m3fn", "float8_e5m2"]), HOPPER),
    Row("reductions", HERE / "reductions.tl", REDUCED),
    Row("reductions_of_every_kind", HERE / "reductions_all.tl", REDUCED_BY_EVERY_KIND),
    Row(
        "reducers", HERE / "reducers.tl",
        each(entry=["scalars", "rows"], dtype=["float16", "bfloat16", "float64", "int32"]), AMPERE, strict=False,
    ),
    Row(
        "scans", HERE / "scans.tl",
        each(dtype=["float32", "float16", "int32", "uint8", "float64"], reverse=[False, True]),
    ),
    # Tiles are turned; neighbours that lie outside the tile are read only where they are not used.
    Row("neighbours", HERE / "neighbours.tl", each(dtype=["float32", "float16", "int8"])),
    # Functions of scalars.
    Row("scalars", HERE / "scalars.tl", each(dtype=["float32", "float16", "bfloat16"])),
    # A transpose through shared memory.
    Row("shared", HERE / "shared.tl", each(dtype=["float16", "float32", "int8", "float8_e4m3fn"])),
    Row("in_place", HERE / "in_place.tl"),
    Row("in_place_by_a_variable", HERE / "in_place_variable.tl"),
    # Tensors are written and read again.
    Row("reread", HERE / "reread.tl"),
    # Random small integers as row offsets and trip counts, some of them out of range.
    Row("gather", HERE / "gather.tl", seeds=3),
    Row("gather_through_fragments", HERE / "gather_fragment.tl", forms=AMPERE + HOPPER),
    Row(
        "placements", HERE / "placements.tl", each(entry=["moved"], how=["rotated"], dtype=["int8", "float64"]), AMPERE,
        strict=False,
    ),
    # ---- forms of the language ----
    Row(
        "tilelang_forms", HERE / "tilelang_forms.tl",
        each(entry=["reductions", "loops", "elements", "registers", "anew", "parts_of_warps"]), AMPERE + HOPPER,
        strict=False,
    ),
    Row(
        "views", HERE / "views.tl", each(entry=["fragments", "products", "pipelined", "bits"]),
        tuple((target, strategy) for target in ("sm_80", "sm_90a") for strategy in ("auto", "none")), strict=False,
    ),
)  # fmt: skip


def list_forms() -> Iterator[object]:
    """Yield each row with each of its sets of constants, for each of its targets and strategies."""
    for row in TABLE:
        for constants, (target, strategy) in product(row.constants, row.forms):
            named = (f"{name}={value}" for name, value in constants.items())
            yield pytest.param(row, constants, target, strategy, id="-".join((row.name, *named, target, strategy)))


@pytest.mark.parametrize(("row", "constants", "target", "strategy"), [*list_forms()])
def test_kernel_agrees(row: Row, constants: Constants, target: str, strategy: Strategy) -> None:
    agrees(row.kernel, target, strategy, seeds=range(row.seeds), strict=row.strict, **constants)


def test_every_sample_is_here() -> None:
    assert {*SAMPLES.glob("*.tl")} == {row.kernel for row in TABLE if row.kernel.parent == SAMPLES}
