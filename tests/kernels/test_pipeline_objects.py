"""Pipelines as values of a kernel: roles that acquire, fill and release stages compute what the reference does."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, agrees, built

from tilec import emulate
from tilec.diag import CompileError
from tilec.emulate import Arguments

KERNELS = HERE / "pipeline_objects.tl"
SAMPLE = HERE.parents[1] / "samples" / "gemm" / "pipeline_objects.tl"
BY_TMA = ("three_roles", "in_branches", "two_at_once", "four_roles", "left_early")
ANYWHERE = ("two_at_once", "by_threads", "four_roles", "left_early")


@pytest.mark.parametrize(
    ("target", "name"), [("sm_90a", n) for n in (*BY_TMA, "by_threads")] + [("sm_80", n) for n in ANYWHERE]
)
def test_equals_the_reference(target: str, name: str) -> None:
    """With no spill and nothing serialised."""
    agrees(KERNELS, target, entry=name)


def numpy_result(name: str, given: Arguments, trips: int) -> np.ndarray:
    """What the kernels compute of so many blocks of K."""
    tensors = {n: t.astype(np.float32) for n, t in given.tensors.items()}
    A = tensors["A"]
    width = 64 * trips
    if name == "by_threads":
        return np.concatenate([2 * A[:, :width] + 1, tensors["C"][:, width:]], 1)
    if name == "left_early":
        plain = [i in (1, trips - 1) for i in range(trips)]
        blocks = [A[:, 64 * i : 64 * i + 64] + (not is_plain) for i, is_plain in enumerate(plain)]
        return np.concatenate([*blocks, tensors["C"][:, width:]], 1)
    depth = width + 64 * (trips % 2) if name == "two_at_once" else width
    return A[:, :depth] @ tensors["B"][:depth]


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("name", [*BY_TMA, "by_threads"])
def test_trip_counts_on_a_hostile_machine(name: str, stages: int, trips: int) -> None:
    """None, one, as many as there are stages, one less and one more; the PTX and the reference against numpy."""
    if name == "two_at_once" and stages == 1:
        with pytest.raises(CompileError, match="one stage of pipe more than there are"):
            built(KERNELS, "sm_90a", entry=name, trips=trips, stages=stages)
        return
    _, made = built(KERNELS, "sm_90a", entry=name, trips=trips, stages=stages)
    given = emulate.random_arguments(made.kernel, made.manifest, trips)
    wanted = numpy_result(name, given, trips)
    reference = given.copy()
    emulate.reference(made.kernel, reference)
    np.testing.assert_allclose(reference.tensors["C"].astype(np.float32), wanted, rtol=2e-3, atol=2e-3)
    for adversary in (None, trips):
        ran = given.copy()
        emulate.run(made, ran, options=emulate.RunOptions(adversary=adversary))
        np.testing.assert_allclose(ran.tensors["C"].astype(np.float32), wanted, rtol=2e-3, atol=2e-3)
