"""Synchronisation is complete and minimal: no wait, fence or barrier of a program can be missing or wait for less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from building import KERNELS, SAMPLES, Defines, build_source, built, outcome
from mutants import REMOVED, mutants

from tilec.driver.build import build_kernel
from tilec.driver.observer import Observer
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

Case = tuple[Path, str, Strategy, Defines]

# Seven iterations through rings of three: prologue, steady state and epilogue, and each version is used again.
SHORT: Defines = (("M", 128), ("N", 128), ("K", 448), ("block_K", 32), ("num_stages", 3))
# Fragments that are loaded beside the products before them, and a product in flight from iteration to iteration.
STEPS: Defines = (("BM", 128), ("BN", 192), ("KI", 16), ("threads", 256), ("trips", 3))
WALK: Defines = (("M", 640), ("N", 128), ("K", 128), ("walkers", 1), ("block_N", 128), ("block_K", 32))
FORMS: list[tuple[str, Strategy]] = [
    ("sm_80", "auto"),
    ("sm_80", "none"),
    ("sm_90a", "auto"),
    ("sm_90a", "unspecialize"),
    ("sm_90a", "none"),
]
CASES: list[Case] = [
    *((SAMPLES / "gemm.tl", *form, SHORT) for form in FORMS),
    *((KERNELS / "attention.tl", *form, ()) for form in FORMS),
    *((KERNELS / "triangular.tl", *form, ()) for form in FORMS),
    *((KERNELS / "manual.tl", *form, (("form", 1),)) for form in FORMS),
    (SAMPLES / "gemm_bias_relu.tl", "sm_90a", "auto", (("M", 128), ("N", 128), ("K", 256))),
    # Two tiles of four chunks through two buffers; three, where warpgroups store together.
    (KERNELS / "staged_store.tl", "sm_90a", "auto", ()),
    (KERNELS / "staged_store.tl", "sm_90a", "auto", (("threads", 128), ("bM", 64), ("M", 64), ("num_stages", 5))),
    # A row that the producer fetches for each of the tiles.
    (KERNELS / "staged_store.tl", "sm_90a", "auto", (("epilogue", "row"), ("tiles", 3), ("N", 768))),
    (SAMPLES / "gemm.tl", "sm_100a", "auto", SHORT),
    (SAMPLES / "gemm" / "gemm_sm100.tl", "sm_100a", "auto", WALK),
    (KERNELS / "unpacked_in_shared.tl", "sm_100a", "auto", (("M", 128), ("N", 128), ("K", 256))),
    (KERNELS / "shared.tl", "sm_80", "auto", ()),
    *((KERNELS / "streaming.tl", "sm_90a", "auto", (("trips", 15), (form, True))) for form in ("add", "twice")),
    (KERNELS / "unrolled.tl", "sm_80", "auto", ()),
    (KERNELS / "unrolled.tl", "sm_90a", "auto", ()),
    (KERNELS / "gemm_of_parts.tl", "sm_90a", "auto", STEPS),
    *((KERNELS / "made_anew.tl", "sm_90a", "auto", (("how", how),)) for how in (1, 4, 5)),
    *((KERNELS / "made_anew.tl", "sm_80", "auto", (("how", how),)) for how in (1, 3)),
]


@pytest.mark.some(16)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((case[0].stem, *case[1:3])))
def test_nothing_can_be_missing(case: Case) -> None:
    """By the verifier alone, or, where it sees no harm, by what the emulated program does."""
    path, target, strategy, defines = case
    made = built(path, target, strategy, 3, defines)
    assert list(program_violations(made.program)) == []
    unnoticed = {what: program for what, program in mutants(made.program) if not list(program_violations(program))}
    assert [what for what, program in unnoticed.items() if not outcome(made, program, target)] == []


def test_the_emulator_sees_what_chunks_need() -> None:
    """By itself, without the verifier's help: each barrier of a warpgroup, each fence, each wait for a buffer."""
    made = built(KERNELS / "staged_store.tl", "sm_90a", "auto", 3, ())
    kinds = ("WarpgroupSync", "ProxyFence", "BulkWait")
    changed = {what: program for what, program in mutants(made.program) if any(kind in what for kind in kinds)}
    assert len(changed) == 22
    assert [what for what, program in changed.items() if not outcome(made, program, "sm_90a")] == []


def test_the_barrier_before_a_tile_over_a_ring_is_needed() -> None:
    """Both see it, the verifier and the emulator, where a warpgroup's rows of C lie over rows of A that the other one
    reads. Where they are over its own, none of the role is needed, but one of the warpgroup."""
    wide = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, (("M", 128), ("N", 128), ("K", 128)))
    (first, *_), at_role = (
        [p for what, p in mutants(wide.program) if kind in what] for kind in ("WarpgroupSync", "BarSync")
    )
    assert not at_role
    said = "StoreMatrix on A_shared has no barrier after Wgmma, and C_local.staging reuses its memory"
    half = tuple(replace(t, offset=t.offset + 8192 * t.over_rings) for t in wide.program.shared)
    for program in (first, replace(wide.program, shared=half)):
        (violation,) = program_violations(program)
        assert violation.endswith(said)
    defines = (("M", 128), ("N", 128), ("K", 128), ("block_K", 32), ("num_stages", 3))
    made = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, defines)
    assert outcome(made, made.program, "sm_90a") == ""
    (mutant,) = (program for what, program in mutants(made.program) if "BarSync" in what)
    (violation,) = program_violations(mutant)
    assert violation.endswith(said)
    assert "data-race" in outcome(made, mutant, "sm_90a")


@pytest.mark.weekly
def test_the_mutants_are_many() -> None:
    """The test above means something: every kind of operation is taken away somewhere."""
    found = [what for path, *form in CASES for what, _ in mutants(built(path, form[0], form[1], 3, form[2]).program)]
    assert len(found) > 300
    assert {kind.__name__ for kind in REMOVED} == {what.split()[2].strip(",") for what in found if "without" in what}


# ---- what is placed --------------------------------------------------------------------------------------------------


def steady(program: warp.Program, role: str) -> tuple[warp.Operation, ...]:
    """The steady state of a role's pipeline."""
    (body,) = (r.body for r in program.roles if r.name == role)
    (loop,) = (op for op in warp.walk_operations(body) if isinstance(op, warp.Loop) and op.part == "steady")
    return loop.body


def names(body: tuple[warp.Operation, ...]) -> list[str]:
    return [type(op).__name__ for op in body if not isinstance(op, warp.Advance)]


def test_a_specialised_gemm_keeps_a_product_in_flight() -> None:
    """The version of the iteration before is handed back while this iteration's product runs."""
    consumer = steady(built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, ()).program, "consumer")
    assert names(consumer) == ["RingWait", "Wgmma", "WgmmaWait", "RingRelease"]
    (wait,) = (op for op in consumer if isinstance(op, warp.WgmmaWait))
    assert wait.pending == 1


@pytest.mark.parametrize(("target", "strategy"), [("sm_80", "auto"), ("sm_90a", "unspecialize")])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_one_barrier_serves_an_iteration(target: str, strategy: Strategy, stages: int) -> None:
    """Two where one version is all there is: it is filled after the product and read before the next fill."""
    gemm = SourceFile("gemm.tl", (SAMPLES / "gemm.tl").read_text(encoding="utf-8"))
    asked = CompileOptions(
        target=target, pipeline_strategy=strategy, defines=(("num_stages", stages),), tma_loads=False
    )
    (role,) = build_kernel(gemm, asked, Observer()).program.roles
    (loop,) = (op for op in warp.walk_operations(role.body) if isinstance(op, warp.Loop))
    assert names(loop.body).count("BarSync") == (2 if stages == 1 else 1)


def test_waits_leave_in_flight_what_the_schedule_does() -> None:
    """Deeper rings, more cp.async groups still under way when a version is needed; at -O2, in its own iteration."""
    pending = []
    for stages in (1, 2, 3, 4):
        made = built(SAMPLES / "gemm.tl", "sm_80", "auto", 2, (("num_stages", stages),)).program
        pending.append(
            next(op.pending for op in warp.walk_operations(made.roles[0].body) if isinstance(op, warp.CpAsyncWait))
        )
    assert pending == sorted(pending) and pending[0] == 0 and pending[-1] > 0


BRANCH = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((256, 64), "float16"), B: T.Tensor((64, 32), "float16"), C: T.Tensor((256, 32), "float32")):
    with T.Kernel(4, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((64, 32), "float32")
        T.clear(c)
        T.copy(A[bx * 64, 0], a)
        T.copy(B[0, 0], b)
        if bx % 2 == 0:
            T.gemm(a, b, c)
        T.copy(c, C[bx * 64, 0])
"""


@pytest.mark.parametrize(("target", "strategy"), FORMS)
def test_a_product_in_one_branch_only(target: str, strategy: Strategy) -> None:
    """Where paths meet, what only one of them started is still waited for."""
    made = build_source(SourceFile("kernel.tl", BRANCH), target, strategy)
    waits = [op for op in warp.walk_operations(made.program.roles[0].body) if isinstance(op, warp.WgmmaWait)]
    assert bool(waits) == (target == "sm_90a")
    assert outcome(made, made.program, target) == ""


COPIES = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((128, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((128, 64), "float16")):
    with T.Kernel(2, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        T.copy(A[bx * 64, 0], a)
        if bx > 0:
            T.clear(b)
        else:
            T.copy(B, b)
        T.copy(a, C[bx * 64, 0])
"""


def test_a_copy_in_one_branch_only() -> None:
    """The other path has begun fewer groups: a wait that leaves one in flight would leave its last."""
    made = build_source(SourceFile("kernel.tl", COPIES), "sm_80", "none")
    found = [type(op) for op in warp.walk_operations(made.program.roles[0].body)]
    assert found.count(warp.CpAsync) == 2 and warp.CpAsyncWait in found
    assert outcome(made, made.program, "sm_80") == ""


@pytest.mark.weekly
def test_barriers_of_roles_do_not_meet() -> None:
    """Barrier 0 is the block's; each role that shares the block with others has its own."""
    for path, target, strategy, defines in CASES:
        made = built(path, target, strategy, 3, defines).program
        for number, role in enumerate(made.roles):
            found = {(op.id, op.threads) for op in warp.walk_operations(role.body) if isinstance(op, warp.BarSync)}
            assert found <= {(1 + number if len(made.roles) > 1 else 0, role.threads)}


def test_no_wgmma_in_flight_where_a_guard_ends() -> None:
    """ptxas takes a wait inside a guard for one that may not come, and serialises: after the steady state, and in each
    guard that follows it, everything is waited for."""
    defines = (("causal", True), ("block_M", 64), ("block_N", 64), ("threads", 128))
    made = built(SAMPLES / "flash_attention.tl", "sm_90a", "auto", 3, defines)
    pipeline = next(op for op in warp.walk_operations(made.program.roles[0].body) if isinstance(op, warp.Pipeline))
    at = next(i for i, op in enumerate(pipeline.body) if isinstance(op, warp.Loop))
    guards = [op for op in pipeline.body[at + 2 :] if isinstance(op, warp.Branch)]
    ends = [pipeline.body[at + 1], *(op.then[-1] for op in guards if any(map(is_wgmma, warp.walk_operations(op.then))))]
    assert len(ends) > 1
    assert all(isinstance(op, warp.WgmmaWait) and op.pending == 0 for op in ends)


def is_wgmma(op: warp.Operation) -> bool:
    return isinstance(op, warp.Wgmma)
