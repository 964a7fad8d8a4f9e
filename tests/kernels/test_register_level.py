"""Fragments that nobody asked for, with stages: when products load them ahead, and that they are right."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from harness import HERE, SAMPLES
from sass import Code, disassembled

from tilec.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.driver import build as driver
from tilec.driver.build import Build, Observer, Plan
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.emu import launch
from tilec.ir.tile import TileOp, walk_statements
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL, WRITTEN, GEMM = HERE / "register_level.tl", HERE / "written_levels.tl", SAMPLES / "gemm.tl"
LARGE: dict[str, Value] = {"M": 4096, "N": 4096, "K": 4096}
DEPTH, MOST = 3, 5


def asked(path: Path, stages: int | None, **defines: Value) -> tuple[SourceFile, CompileOptions]:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    return source, CompileOptions(target="sm_80", defines=tuple(defines.items()), register_stages=stages)


@cache
def made(path: Path = KERNEL, stages: int | None = 2, **defines: Value) -> Build:
    return driver.build_kernel(*asked(path, stages, **defines), Observer())


def planned(path: Path, stages: int | None = None, **defines: Value) -> Plan:
    source, options = asked(path, stages, **defines)
    return driver.plan_kernel(source, options, Observer())


def decided(plan: Plan) -> list[Decision]:
    return [d for d in plan.decisions if d.what.startswith("register stages")]


def ahead(plan: Plan) -> list[TileOp]:
    return [
        s for s in walk_statements(plan.assignment.kernel.body) if isinstance(s, TileOp) and is_fragment_prefetch(s)
    ]


# ---- that they are right ---------------------------------------------------------------------------------------------


def runs(build: Build, trips: int, adversary: int | None = None, tB: bool = False, M: int = 100, BK: int = 64) -> None:
    """The emulated PTX computes what numpy does."""
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in ((M, 320), (320, 72)))
    sums = np.dtype(next(param.dtype.name for param in build.kernel.params if param.name == "C"))
    given = KernelArguments(
        {"A": a, "B": np.ascontiguousarray(b.T) if tB else b, "C": np.full((M, 72), np.nan, sums)}, {"n": trips}
    )
    manifest = build.manifest
    launch(
        build.ptx,
        manifest.entry,
        manifest.blocks(given.scalars),
        manifest.block,
        emulate.build_launch_arguments(manifest, given),
        cluster=manifest.cluster,
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    depth = min(BK * trips, 320)
    wanted = a[:, :depth].astype(np.float32) @ b[:depth].astype(np.float32)
    np.testing.assert_array_equal(given.tensors["C"].astype(np.float32), wanted)


@pytest.mark.parametrize("trips", range(MOST + 1))
def test_any_number_of_iterations(trips: int) -> None:
    build = made()
    assert ".registers.stage1" in build.trace
    runs(build, trips)


@pytest.mark.parametrize("adversary", range(2))
def test_on_hostile_machines(adversary: int) -> None:
    runs(made(), DEPTH + 1, adversary)


@pytest.mark.parametrize(
    "defines",
    [
        {"trips": 2},
        {"trips": 5, "num_stages": 1},
        {"trips": 5, "num_stages": 2},
        {"trips": 5, "tB": True},
        {"trips": 5, "sum_dtype": "float16"},
        {"trips": 10, "BK": 32, "BN": 40},
        {"trips": 2, "BK": 192},  # twelve steps along K, in six
        {"trips": 5, "threads": 32, "BM": 32},
    ],
)
def test_each_form(defines: dict[str, Value]) -> None:
    build = made(**defines)
    assert ".registers.stage1" in build.trace
    runs(build, int(defines["trips"]), tB=bool(defines.get("tB")), BK=int(defines.get("BK", 64)))


@pytest.mark.parametrize("trips", range(2, MOST + 1))
def test_levels_that_the_kernel_writes(trips: int) -> None:
    """Both of its loops overlap, though it says so of neither."""
    build = made(WRITTEN, None, trips=trips)
    assert "A_reg.stage1" in build.trace and "B_reg.stage1" in build.trace
    runs(build, trips, adversary=trips)


@pytest.mark.parametrize("trips", [0, 1])
def test_written_levels_of_too_few_iterations(trips: int) -> None:
    build = made(WRITTEN, None, trips=trips)
    assert "A_reg.stage1" not in build.trace
    runs(build, trips)


def test_written_levels_of_iterations_known_at_launch() -> None:
    build = made(WRITTEN, 2, trips=-1)
    assert "A_reg.stage1" in build.trace
    for trips in range(MOST):
        runs(build, trips)


# ---- which ones, of several ----


MACROS = HERE / "register_macros.tl"


def decided_of(entry: str) -> list[tuple[str, str]]:
    source = SourceFile(MACROS.name, MACROS.read_text(encoding="utf-8"))
    plan = driver.plan_kernel(source, CompileOptions(target="sm_80", entry=entry, register_stages=2), Observer())
    return [(d.chosen, d.why) for d in decided(plan)]


@pytest.mark.parametrize("entry", ["cleared", "stepped", "twice"])
@pytest.mark.parametrize("stages", [None, 2])
def test_what_a_macro_makes_several_times(entry: str, stages: int | None) -> None:
    source = SourceFile(MACROS.name, MACROS.read_text(encoding="utf-8"))
    build = driver.build_kernel(source, CompileOptions(target="sm_80", entry=entry, register_stages=stages), Observer())
    found = emulate.draw_arguments(build.kernel, build.manifest, seed=0)
    expected = found.copy()
    emulate.emulate_build(build, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(build.kernel, expected)
    assert all(one.matches for one in emulate.compare_arguments(build.kernel, build.manifest, found, expected))


def test_each_is_decided_by_itself() -> None:
    assert [chosen for chosen, _ in decided_of("stepped")] == ["2", "2", "1"]
    assert decided_of("stepped")[2][1].endswith("but the loop that loads it has 1 iteration")
    assert [why for _, why in decided_of("cleared")][1] == "it clears C_local in each iteration"
    assert decided_of("twice") == [("1", "a fragment that it loads needs another layout for the product")]


# ---- when they are ---------------------------------------------------------------------------------------------------


def test_where_a_block_has_a_multiprocessor_to_itself() -> None:
    """Its warps have nobody to hide what they wait for: 32 cycles of latency, and 192 of 8 warps' fragments."""
    plan = planned(GEMM, **LARGE)
    (decision,) = decided(plan)
    assert (decision.chosen, decision.by) == ("2", "the compiler") and len(ahead(plan)) == 8
    assert decision.why.startswith(
        "without prefetching each iteration would wait 224 cycles for its first fragments by ldmatrix: "
    )
    (loop,), (before,) = plan.loops, planned(GEMM, 1, **LARGE).loops
    assert loop.solution.schedule.ii <= before.solution.schedule.ii - 150


def test_not_where_blocks_hide_it_for_one_another() -> None:
    plan = planned(GEMM, **LARGE, threads=128, block_N=64)
    (decision,) = decided(plan)
    assert (decision.chosen, decision.by) == ("1", "the compiler") and not ahead(plan)
    assert "and 2 blocks on a multiprocessor, which compute while one waits" in decision.why


@pytest.mark.parametrize(
    ("defines", "why"),
    [
        ({"BM": 256, "BN": 128}, "needs about "),
        ({}, "the trip count of the loop is known only at launch"),
        ({"trips": 1}, "the loop runs 1 iteration"),
        ({"trips": 10, "BK": 16}, "it has only one step along K"),
        ({"trips": 5, "BK": 48}, "2 stages do not divide its 3 steps along K"),
        ({"trips": 5, "dtype": "float32"}, "ldmatrix fills fragments of 16 bits an element, and these have float32"),
        ({"trips": 5, "tA": True}, "A_shared is stored along M, and fragments need K"),
        ({"trips": 5, "clears": True}, "it clears C_local in each iteration"),
        ({"trips": 5, "also": True}, "the loop does more than load and multiply: line 44"),
        ({"by_hand": True}, "the loop has a manual schedule"),
    ],
)
def test_not_where_it_cannot_be(defines: dict[str, Value], why: str) -> None:
    plan = planned(KERNEL, **({"trips": 5} if "BM" in defines else {}), **defines)
    (decision,) = decided(plan)
    assert (decision.chosen, decision.by) == ("1", "the compiler") and not ahead(plan)
    assert why in decision.why


@pytest.mark.parametrize(
    ("defines", "why"),
    [
        ({"trips": 3, "KI": 64}, "A_reg has 2 stages, but the loop that loads it has 1 iteration"),
        ({"trips": -1}, "the trip count of the loop is known only at launch"),
        ({"also": True}, "the loop does more than load and multiply: line 33"),
    ],
)
def test_not_where_written_steps_cannot_be(defines: dict[str, Value], why: str) -> None:
    plan = planned(WRITTEN, **defines)
    (decision,) = decided(plan)
    assert (decision.chosen, decision.by) == ("1", "the compiler") and not ahead(plan)
    assert why in decision.why


def test_stages_need_not_divide_the_iterations() -> None:
    """Three steps and two stages: the last step loads registers of its own."""
    plan = planned(WRITTEN, BK=48)
    (decision,) = decided(plan)
    assert (decision.chosen, decision.by) == ("2", "the compiler") and ahead(plan)


def test_one_stage_asked_for_is_one() -> None:
    plan = planned(WRITTEN, versions=1)
    assert not decided(plan) and not ahead(plan)


def test_a_loop_inside_costs_what_its_iterations_do() -> None:
    """The tensor cores multiply 64 × 64 × 64 in each iteration of the loop around, whatever steps that is done in."""
    (whole,), (steps,) = (planned(path, 1, trips=5).loops for path in (KERNEL, WRITTEN))
    held = [
        sum(
            use.cycles
            for op in one.loop.problem.ops
            for use in op.uses
            if one.loop.problem.slots[use.slot].name == "tc_and_mma"
        )
        for one in (whole, steps)
    ]
    assert held[0] == held[1] > 0


def test_as_the_command_line_says() -> None:
    plan = planned(GEMM, 1, **LARGE)
    assert decided(plan) == [Decision("register stages", "1", "the command line", "--register-stages 1")]
    assert not ahead(plan)
    plan = planned(KERNEL, 2)
    assert decided(plan) == [Decision("register stages", "2", "the command line", "--register-stages 2")]
    assert ahead(plan)


def test_nothing_is_said_of_products_that_read_shared_memory_themselves() -> None:
    source, options = asked(GEMM, None)
    plan = driver.plan_kernel(source, CompileOptions(target="sm_90a", defines=options.defines), Observer())
    assert not decided(plan)


# ---- the machine code ------------------------------------------------------------------------------------------------


def loop_of(build: Build, folder: Path) -> list[str]:
    """The barriers, loads of fragments and products of the main loop, in order."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(build.cubin)
    code: Code = disassembled(cubin)
    return [i.stem for i in code.around("HMMA") if i.stem in ("BAR", "LDSM", "HMMA")]


def test_products_on_either_side_of_the_barrier(tmp_path: Path) -> None:
    """An iteration begins with products, and its last ones stand among the loads of the next iteration's first
    fragments, a quarter of all, behind the barrier."""
    build = made(GEMM, None)
    (entry,) = build.entries
    assert (entry.stack_bytes, entry.spill_store_bytes) == (0, 0)
    loop = loop_of(build, tmp_path)
    barrier = loop.index("BAR")
    before, behind = loop[:barrier], loop[barrier + 1 :]
    assert "BAR" not in behind and before[0] == "HMMA"
    assert 4 * behind.count("LDSM") == loop.count("LDSM")
    first, last = behind.index("LDSM"), len(behind) - behind[::-1].index("LDSM")
    assert behind[:first].count("HMMA") > 0 and behind[first:last].count("HMMA") > 0 and behind[last:].count("HMMA") > 0


def test_else_each_iteration_begins_with_loads(tmp_path: Path) -> None:
    loop = loop_of(made(GEMM, 1), tmp_path)
    assert loop[0] == "BAR" and loop[1] == "LDSM" and loop.count("BAR") == 1
