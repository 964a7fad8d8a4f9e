"""Nests that go along the rows of shared tiles: threads lie beside each other where wide accesses cannot."""

from __future__ import annotations

import pytest

from tilec.driver import build as driver, simulate
from tilec.driver.emulation import emulate
from tilec.simulate import counters
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

KERNEL = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((1024,), "{dtype}"), B: T.Tensor((1024,), "{dtype}")):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((1024,), "{dtype}")
        t = T.alloc_shared((1024,), "{dtype}")
        T.copy(A, s)
        for p in T.serial(2):
            for i in T.Parallel(1024):
                t[i] = s[i] + s[{index}]
            T.copy(t, s)
        T.copy(s, B)
"""
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"


def conflicts(index: str, dtype: str, target: str) -> tuple[float, str]:
    """Turns that loads from shared memory take beyond those of their bytes, of a kernel that is right; its PTX."""
    text = KERNEL.format(index=index, dtype=dtype)
    build = driver.build_kernel(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
    found = emulate.draw_arguments(build.kernel, build.manifest, 3)
    expected = found.copy()
    emulate.emulate_build(build, found)
    emulate.run_reference(build.kernel, expected)
    for r in emulate.compare_arguments(build.kernel, build.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
    values = {
        each.name: each.value for each in counters.compute_counters(simulate.simulate_build(build, load_target(target)))
    }
    return values[CONFLICTS], build.ptx


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("index", ["(i + 1) % 1024", "(i + 1024 - (1 << p)) % 1024", "i ^ (1 << p)", "1023 - i"])
def test_elements_that_are_read_one_by_one_lie_in_banks_of_their_own(index: str, dtype: str, target: str) -> None:
    assert conflicts(index, dtype, target)[0] == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("index", ["i", "(i + 4) % 1024", "i // 32", "p", "i - i % 4"])
def test_accesses_stay_wide_where_they_can(index: str, target: str) -> None:
    assert "ld.shared.v4.f32" in conflicts(index, "float32", target)[1]
