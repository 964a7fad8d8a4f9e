"""Races between roles, planted in a kernel that has none: each is found when the kernel is checked, and is one."""

from __future__ import annotations

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

OPTIONS = CompileOptions(target="sm_90a")
KERNEL = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((9, 16, 128), "float32"), C: T.Tensor((9, 16, 128), "float32"),
           D: T.Tensor((9, 8, 128), "float32"), E: T.Tensor((9, 16, 128), "float32")):
    with T.Kernel(1, threads=512):
        ring = T.alloc_shared((3, 16, 128), "float32")
        back = T.alloc_shared((8, 128), "float32")
        full = T.alloc_barrier([128] * 3)
        empty = T.alloc_barrier([256] * 3)
        taken = T.alloc_barrier(128)
        given = T.alloc_barrier(128)
        with T.ws(0):
            for i in T.serial(9):
                T.barrier_wait(empty[i % 3], (i // 3 + 1) % 2)
                T.tma_copy(A[i, 0:16, 0:128], ring[i % 3, :, :], barrier=full[i % 3])
                T.barrier_arrive(full[i % 3])
        with T.ws(1):
            for i in T.serial(9):
                T.barrier_wait(full[i % 3], i // 3 % 2)
                T.barrier_wait(taken, (i + 1) % 2)
                for r, j in T.Parallel(8, 128):
                    back[r, j] = ring[i % 3, 7 - r, j]
                T.barrier_arrive(given)
                for r, j in T.Parallel(8, 128):  # change
                    ring[i % 3, r, j] = ring[i % 3, r, j] + 1.0
                T.fence_proxy_async()
                for r, j in T.Parallel(8, 128):
                    C[i, r, j] = ring[i % 3, r, 127 - j]
                T.barrier_arrive(empty[i % 3])
        with T.ws(2):
            for i in T.serial(9):
                T.barrier_wait(full[i % 3], i // 3 % 2)  # reader
                # early
                for r, j in T.Parallel(8, 128):
                    E[i, r + 8, j] = ring[i % 3, r + 8, 127 - j]
                T.barrier_arrive(empty[i % 3])  # late
        with T.ws(3):
            for i in T.serial(9):
                T.barrier_wait(given, i % 2)
                T.copy(back, D[i, 0:8, 0:128])
                T.barrier_arrive(taken)
"""
PLANTED = {
    "a part that the other one reads": [("T.Parallel(8, 128):  # change", "T.Parallel(9, 128):")],
    "another stage than was waited for": [("ring[i % 3, r + 8, 127 - j]", "ring[(i + 1) % 3, r + 8, 127 - j]")],
    "an arrival before the last read": [
        ("T.barrier_arrive(empty[i % 3])  # late", ""),
        ("# early", "T.barrier_arrive(empty[i % 3])"),
    ],
    "no wait for who has taken it": [("T.barrier_wait(taken, (i + 1) % 2)", "")],
    "no wait for what is given": [("T.barrier_wait(given, i % 2)", "")],
    "no wait for the copy": [("T.barrier_wait(full[i % 3], i // 3 % 2)  # reader", "")],
    "the wait for the phase before": [
        ("T.barrier_wait(empty[i % 3], (i // 3 + 1) % 2)", "T.barrier_wait(empty[i % 3], 1)")
    ],
}


def said(text: str) -> list[str]:
    try:
        driver.check_file(SourceFile("k.tl", text), OPTIONS, driver.Observer())
    except CompileError as error:
        return [d.code for d in error.diagnostics]
    return []


def is_right(text: str) -> bool:
    """Whether the emulator finds nothing, whichever of several orders it takes."""
    made = driver.build_kernel(SourceFile("k.tl", text), OPTIONS, driver.Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    wanted = given.copy()
    emulate.run_reference(made.kernel, wanted)
    for adversary in (None, 1, 2, 3):
        ran = given.copy()
        try:
            emulate.emulate_build(made, ran, options=emulate.RunOptions(adversary=adversary))
        except Fault:
            return False
        if not all(result.matches for result in emulate.compare_arguments(made.kernel, made.manifest, ran, wanted)):
            return False
    return True


def test_a_kernel_whose_roles_share_a_stage_by_halves_is_right() -> None:
    assert said(KERNEL) == []
    assert is_right(KERNEL)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_race_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = KERNEL
    for there, instead in PLANTED[planted]:
        assert text.count(there) == 1
        text = text.replace(there, instead)
    assert said(text) in (["role-race"], ["barrier-deadlock"])
    if said(text) == ["role-race"]:
        monkeypatch.setattr("tilec.passes.explicit_roles.check_role_races.check_role_races", lambda: None)
        assert not is_right(text)
