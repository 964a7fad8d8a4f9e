"""Roles of single warps, and sections that all warps run together between them: right for any number of iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.interp import run as interp
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations

KERNELS = HERE / "warp_roles.tl"
Tensors = dict[str, np.ndarray]


def run_kernel(made: Build, adversary: int | None) -> Tensors:
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
    return found.tensors


@pytest.mark.parametrize("adversary", [None, 1])
@pytest.mark.parametrize("trips", [1, 2, 3])
def test_products_of_tensor_cores(trips: int, adversary: int | None) -> None:
    """As many iterations as there are versions, one less and one more."""
    _, made = built(KERNELS, "sm_100a", entry="tensor_cores", trips=trips)
    assert [(role.name, role.first_warp, role.warps) for role in made.program.roles] == [
        (f"warp_{number}", number, 1) for number in range(4)
    ]
    assert [role.warps for section in made.program.later for role in section] == [4]
    t = run_kernel(made, adversary)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    expected = np.maximum(a[: 32 * trips].T @ b[:, : 32 * trips].T + t["R"], 0)
    np.testing.assert_allclose(t["C"], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("trips", range(4))
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_two_warps_multiply(target: str, trips: int) -> None:
    _, made = built(KERNELS, target, entry="two_warps_multiply", trips=trips)
    t = run_kernel(made, trips)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    expected = a[:, : 32 * trips] @ b[: 32 * trips] + t["R"]
    np.testing.assert_allclose(t["C"], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("trips", range(1, 4))
def test_roles_within_a_loop(trips: int) -> None:
    """The other side of an `if` is warps before and behind those that it names: each has work of its own there."""
    _, made = built(KERNELS, "sm_90a", entry="in_a_loop", trips=trips)
    assert [(role.first_warp, role.warps) for role in made.program.roles] == [(0, 4), (4, 1), (5, 1), (6, 2)]
    t = run_kernel(made, trips)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    np.testing.assert_allclose(t["C"], a[:, : 32 * trips] @ b[: 32 * trips], rtol=1e-4, atol=1e-3)


def test_tensors_are_passed_between_roles() -> None:
    """Not by TMA, the writes of which an arrival does not wait for."""
    _, made = built(KERNELS, "sm_90a", entry="stored_and_read")
    assert "cp.async.bulk.tensor" not in made.ptx
    for adversary in range(3):
        t = run_kernel(made, adversary)
        np.testing.assert_allclose(t["Z"], 2 * t["X"].astype(np.float32) + 3, rtol=2e-3, atol=2e-3)


def compute_sections(x: np.ndarray) -> np.ndarray:
    sums = np.concatenate([x[32:].sum(1) * 2, x[32:].sum(1)])
    s = x * np.float32(0.5) + sums[:, None]
    s[:, :16] -= np.float32(0.5)
    return s + s[:, ::-1]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_sections_follow_one_another(target: str) -> None:
    _, made = built(KERNELS, target, entry="sections")
    sections = [[(role.first_warp, role.warps) for role in section] for section in made.program.sections]
    assert sections == [[(0, 4)], [(0, 1), (1, 2), (3, 1)], [(0, 4)], [(0, 2), (2, 1), (3, 1)], [(0, 4)]]
    names = [role.name for role in made.program.all_roles]
    assert len(set(names)) == len(names)
    for adversary in range(3):
        t = run_kernel(made, adversary)
        np.testing.assert_allclose(t["Y"], compute_sections(t["X"]), rtol=1e-4, atol=1e-3)
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    interp.run_kernel(made.kernel, found.tensors)
    np.testing.assert_allclose(found.tensors["Y"], compute_sections(found.tensors["X"]), rtol=1e-4, atol=1e-3)


def test_the_barrier_between_sections_is_verified() -> None:
    """A section that does not end with it, or has another barrier of that number, is found."""
    _, made = built(KERNELS, "sm_90a", entry="sections")
    program = made.program
    assert list(program_violations(program)) == []
    first, *others = program.roles
    (at,) = (at for at, op in enumerate(first.body) if isinstance(op, warp.NamedBarrier))
    for body in (first.body[:at], (first.body[at], *first.body)):
        broken = replace(program, roles=(replace(first, body=body), *others))
        assert any("section" in each for each in program_violations(broken))
