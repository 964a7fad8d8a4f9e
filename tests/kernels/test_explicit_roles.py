"""Work that a kernel itself shares out among its warpgroups: what each role becomes, and that it computes the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import HERE, agrees, built
from test_adversary import compute

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.interp import run as interp
from tilec.ir import warp
from tilec.ir.elements import decode_values
from tilec.ir.text import print_kernel
from tilec.ir.tile import Kernel
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ir.types import FLOAT16
from tilec.ir.warp_text import show_program
from tilec.support.diagnostics import CompileError

KERNELS = HERE / "roles.tl"
BY_TMA = ("by_tma", "in_flight", "two_consumers", "alone")
ANYWHERE = ("by_threads", "computed", "arriving", "in_common", "before")
Body = Callable[..., Kernel]
Golden = Callable[[str, str, str], None]

CASES = [("sm_90a", name) for name in (*BY_TMA, *ANYWHERE)] + [("sm_80", name) for name in ANYWHERE]


@pytest.mark.parametrize(("target", "name"), CASES)
def test_equals_the_reference(target: str, name: str) -> None:
    """With no spill and nothing serialised."""
    agrees(KERNELS, target, entry=name)


@pytest.mark.parametrize(("target", "name"), CASES)
def test_blocks_in_another_order(tmp_path: Path, target: str, name: str) -> None:
    """Each role works out for itself where its block is, whether or not the roles have something to do in common."""
    begin = "as (bx, by):\n"
    text = KERNELS.read_text(encoding="utf-8").replace(begin, f"{begin}        T.use_swizzle(2)\n")
    path = tmp_path / "panels.tl"
    path.write_text(text, encoding="utf-8")
    made = agrees(path, target, entry=name, strict=False, M=256, N=384)
    assert made.ptx != built(KERNELS, target, entry=name, M=256, N=384)[1].ptx


def test_the_kernel_of_the_guide(tmp_path: Path) -> None:
    guide = (HERE.parents[1] / "docs" / "roles.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    path = tmp_path / "kernel.tl"
    path.write_text(text.replace("T.ws(1)", "T.WarpSpecialize(1)"), encoding="utf-8")
    agrees(path, "sm_90a")


def test_rows_are_gathered() -> None:
    """By threads, into the version that they name; what they have stored is there for whom they arrive."""
    _, made = built(KERNELS, "sm_90a", entry="gathered")
    for seed in range(3):
        found = emulate.draw_arguments(made.kernel, made.manifest, seed)
        found.tensors["Ids"][:] = np.random.default_rng(seed).integers(0, 128, 64)
        expected = found.copy()
        emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=seed))
        emulate.run_reference(made.kernel, expected)
        assert np.abs(decode_values(expected.tensors["C"], FLOAT16)).max() > 1
        assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("trips", range(6))
@pytest.mark.parametrize("name", ["by_tma", "by_threads", "in_flight", "arriving", "two_consumers", "alone"])
def test_trip_counts_on_a_hostile_machine(name: str, trips: int) -> None:
    """None, one, as many as there are versions and one less and more; phases wrap."""
    _, made = built(KERNELS, "sm_90a", entry=name, trips=trips)
    found = emulate.draw_arguments(made.kernel, made.manifest, trips)
    expected = found.copy()
    emulate.run_reference(made.kernel, expected)
    for adversary in range(3):
        ran = found.copy()
        emulate.emulate_build(made, ran, options=emulate.RunOptions(adversary=adversary))
        for r in emulate.compare_arguments(made.kernel, made.manifest, ran, expected):
            assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


# ---- what becomes of them --------------------------------------------------------------------------------------------

STATEMENTS = """
A_s = T.alloc_shared((2, 64, 64), "float16")
C_l = T.alloc_fragment((64, 64), "float32")
full = T.alloc_barrier([129, 128])
with T.ws(1):
    T.set_max_nreg(40, 0)
    T.tma_copy(A[0, 0], A_s[0, :, :], barrier=full[0])
    T.barrier_arrive(full[0])
    if T.get_thread_binding() == 200:
        T.barrier_arrive(full[0])
    T.async_copy(A[0, 64], A_s[1, :, :])
    T.cp_async_barrier_noinc(full[1])
    T.mbarrier_expect_tx(full[1], 16)
    T.named_barrier_arrive(3, 256)
with T.ws(0):
    T.barrier_wait(full[0], 0)
    T.wgmma_gemm(A_s[0, :, :], A_s[0, :, :], C_l, clear_accum=True)
    T.wait_wgmma(0)
    T.sync_threads(3, 256)
    T.sync_threads(2, 128)
    T.copy(C_l, C)
"""


def test_the_statements_as_text(body: Body, golden: Golden) -> None:
    kernel = body(STATEMENTS, 'A: T.Tensor((64, 128), "float16"), C: T.Tensor((64, 64), "float32")', threads=256)
    assert list(verify_tile(kernel)) == []
    golden("tile", "roles", print_kernel(kernel))


@pytest.mark.parametrize("name", ["by_tma", "by_threads"])
def test_what_each_role_runs(name: str, golden: Golden) -> None:
    """An arrival stands behind the wait and the fence that what it hands on needs."""
    _, made = built(KERNELS, "sm_90a", entry=name)
    golden("warp", f"roles_{name}", show_program(made.program))


def test_products_of_which_the_kernel_says_when_they_are_waited_for_stay_in_flight() -> None:
    _, made = built(KERNELS, "sm_90a", entry="in_flight")
    (consumer, _) = made.program.roles
    (loop,) = (op for op in consumer.body if isinstance(op, warp.Loop))
    waits = [op.pending for op in warp.walk_operations(loop.body) if isinstance(op, warp.WgmmaWait)]
    assert waits == [1]


def test_roles_meet_at_barriers_that_the_kernel_does_not_name() -> None:
    _, made = built(KERNELS, "sm_90a", entry="in_common")
    own = {
        op.id
        for role in made.program.roles
        for op in warp.walk_operations(role.body)
        if isinstance(op, warp.NamedBarrier)
    }
    met = {
        op.id for role in made.program.roles for op in warp.walk_operations(role.body) if isinstance(op, warp.BarSync)
    }
    assert own == {5}
    assert not own & met


def test_registers_move_between_roles() -> None:
    _, made = built(KERNELS, "sm_90a", entry="two_consumers")
    assert made.ptx.count("setmaxnreg.inc.sync.aligned.u32 232") == 2
    assert made.ptx.count("setmaxnreg.dec.sync.aligned.u32 40") == 1


def test_the_reference_names_barriers_that_nobody_arrives_at(body: Body) -> None:
    stuck = """
    bar = T.alloc_barrier([128, 128])
    with T.ws(0):
        T.barrier_wait(bar[0], 0)
        T.barrier_arrive(bar[1])
    with T.ws(1):
        T.barrier_wait(bar[1], 0)
        T.barrier_arrive(bar[0])
    """
    kernel = body(stuck.replace("\n    ", "\n"), "", threads=256)
    with pytest.raises(CompileError) as error:
        interp.run_kernel(kernel, {})
    (found,) = error.value.diagnostics
    assert found.code == "deadlock"
    assert len(found.secondary) == 1


# ---- that it is needed -----------------------------------------------------------------------------------------------

NEEDED = [
    ("by_tma", r"mbarrier\.expect_tx"),
    ("by_tma", r"mbarrier\.arrive"),
    ("by_tma", r"bra \$L\d+_wait"),
    ("by_tma", r"wgmma\.wait_group"),
    ("by_tma", r"fence\.proxy"),
    ("by_tma", r"bar\.sync"),
    ("by_threads", r"cp\.async\.wait_group"),
    ("by_threads", r"mbarrier\.arrive"),
    ("by_threads", r"bra \$L\d+_wait"),
    ("in_flight", r"mbarrier\.(arrive\.)?expect_tx"),
    ("in_flight", r"wgmma\.wait_group"),
    ("arriving", r"cp\.async\.mbarrier"),
    ("computed", r"fence\.proxy"),
    ("computed", r"mbarrier\.arrive"),
    ("gathered", r"mbarrier\.arrive"),
    ("in_common", r"bar\.(sync|arrive) 5"),
    ("in_common", r"cp\.async\.bulk\.wait_group"),
    ("before", r"cp\.async\.wait_group"),
    ("before", r"bar\.sync 0"),
]


@pytest.mark.parametrize(("name", "pattern"), NEEDED)
def test_nothing_can_be_left_out(name: str, pattern: str) -> None:
    """Each wait, arrival and fence, taken out of the PTX by itself: a fault, or wrong numbers."""
    _, made = built(KERNELS, "sm_90a", entry=name)
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        mutant = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        assert not all(right(made, mutant, adversary) for adversary in (None, 1, 2)), lines[place]


def right(made: Build, ptx: str, adversary: int | None) -> bool:
    try:
        return compute(made, ptx, adversary)
    except Fault:
        return False
