"""Pipelines as values of a kernel: roles that acquire, fill and release stages compute what the reference does."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from harness import HERE, agrees, built
from test_explicit_roles import right

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.ir.text import print_kernel
from tilec.ir.tile import Kernel
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ir.warp import BarrierWait, walk_operations
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNELS = HERE / "pipeline_objects.tl"
SAMPLE = HERE.parents[1] / "samples" / "gemm" / "pipeline_objects.tl"
BY_TMA = ("three_roles", "in_branches", "two_at_once", "four_roles", "left_early", "in_parts")
ANYWHERE = ("two_at_once", "by_threads", "four_roles", "left_early", "in_parts", "reduced")


@pytest.mark.parametrize(
    ("target", "name"), [("sm_90a", n) for n in (*BY_TMA, "by_threads", "reduced")] + [("sm_80", n) for n in ANYWHERE]
)
def test_equals_the_reference(target: str, name: str) -> None:
    """With no spill and nothing serialised."""
    agrees(KERNELS, target, entry=name)


def numpy_result(name: str, given: KernelArguments, trips: int) -> np.ndarray:
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
        with pytest.raises(CompileError, match="holds every stage of pipe and acquires one more"):
            built(KERNELS, "sm_90a", entry=name, trips=trips, stages=stages)
        return
    _, made = built(KERNELS, "sm_90a", entry=name, trips=trips, stages=stages)
    given = emulate.draw_arguments(made.kernel, made.manifest, trips)
    wanted = numpy_result(name, given, trips)
    reference = given.copy()
    emulate.run_reference(made.kernel, reference)
    np.testing.assert_allclose(reference.tensors["C"].astype(np.float32), wanted, rtol=2e-3, atol=2e-3)
    for adversary in (None, trips):
        ran = given.copy()
        emulate.emulate_build(made, ran, options=emulate.RunOptions(adversary=adversary))
        np.testing.assert_allclose(ran.tensors["C"].astype(np.float32), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("trips", [1, 4])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_looking_without_waiting(target: str, trips: int) -> None:
    """What is done instead is done once in all, however often the stage is not there yet."""
    _, made = built(KERNELS, target, entry="polled", trips=trips)
    assert made.ptx.count("mbarrier.test_wait.parity") >= 2
    given = emulate.draw_arguments(made.kernel, made.manifest, trips)
    width = 64 * trips
    wanted = {
        "C": np.concatenate([given.tensors["A"][:, :width], given.tensors["C"][:, width:]], 1),
        "D": np.concatenate([given.tensors["A"][:, :width] + np.float16(1), given.tensors["D"][:, width:]], 1),
    }
    reference = given.copy()
    emulate.run_reference(made.kernel, reference)
    runs = [reference]
    for adversary in (None, 1, 2):
        runs.append(given.copy())
        emulate.emulate_build(made, runs[-1], options=emulate.RunOptions(adversary=adversary))
    for run in runs:
        for name, tensor in wanted.items():
            np.testing.assert_array_equal(run.tensors[name], tensor)


def test_an_answer_is_used_for_the_stage_that_it_is_about() -> None:
    """The wait of acquire_if_needed is left out where the stage was there; of another stage the answer says nothing."""
    _, made = built(KERNELS, "sm_90a", entry="polled")
    assert [bool(op.unless) for op in waits_for(made, "pipe_empty")] == [True]
    _, made = built(KERNELS, "sm_90a", entry="stale")
    assert [bool(op.unless) for op in waits_for(made, "pipe_empty")] == [False, True, False]
    agrees(KERNELS, "sm_90a", entry="stale")
    assert right(made, made.ptx, 1)


def waits_for(made: Build, barrier: str) -> list[BarrierWait]:
    every = (op for role in made.program.roles for op in walk_operations(role.body))
    return [op for op in every if isinstance(op, BarrierWait) and op.barrier.name == barrier]


STATEMENTS = """
A_s = T.alloc_shared((64, 64), "float16")
pipe = T.InputTilePipeline(A_s, stages=2)
with T.ws(1):
    with pipe.producer().acquire() as tiles:
        T.copy(A, tiles.A_s)
    pipe.producer().drain()
with T.ws(0):
    stage = pipe.acquire_consumer()
    T.copy(stage.A_s, C)
    stage.release()
"""


def test_what_pipelines_become(body: Callable[..., Kernel], golden: Callable[[str, str, str], None]) -> None:
    """A wait for each acquire, an arrival for each release, and whose turn it is beside them."""
    kernel = body(STATEMENTS, 'A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")', threads=256)
    assert list(verify_tile(kernel)) == []
    golden("tile", "pipelines", print_kernel(kernel))


# ---- that all of it is needed ----------------------------------------------------------------------------------------

NEEDED = [
    ("three_roles", 7, r"mbarrier\.arrive"),  # a release
    ("three_roles", 7, r"mbarrier\.(arrive\.)?expect_tx"),
    ("three_roles", 1, r"bra \$L\d+_wait"),  # an acquire
    ("three_roles", 7, r"wgmma\.(commit_group|wait_group)"),
    ("three_roles", 7, r"fence\.proxy"),
    ("three_roles", 7, r"cp\.async\.bulk\.(commit_group|wait_group)"),
    ("in_branches", 7, r"mbarrier\.arrive"),
    ("in_branches", 7, r"mbarrier\.(arrive\.)?expect_tx"),
    ("two_at_once", 7, r"mbarrier\.arrive"),
    ("two_at_once", 7, r"bra \$L\d+_wait"),
    ("by_threads", 7, r"mbarrier\.arrive"),
    ("by_threads", 7, r"bra \$L\d+_wait"),
    ("four_roles", 7, r"mbarrier\.arrive"),
    ("left_early", 7, r"mbarrier\.arrive"),
]


def mutants_of(made: Build, pattern: str) -> list[tuple[str, str]]:
    """The PTX without each line that has the pattern, and that line."""
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    return [("\n".join([*lines[:place], "", *lines[place + 1 :]]), lines[place]) for place in places]


def caught(made: Build, mutant: str) -> bool:
    return not all(right(made, mutant, adversary) for adversary in (None, *range(8)))


@pytest.mark.parametrize(("name", "trips", "pattern"), NEEDED)
def test_nothing_can_be_left_out(name: str, trips: int, pattern: str) -> None:
    """Each wait, arrival, commit and fence, taken out of the PTX by itself: a fault, or wrong numbers."""
    _, made = built(KERNELS, "sm_90a", entry=name, M=256, trips=trips, K=64 * trips)
    for mutant, line in mutants_of(made, pattern):
        assert caught(made, mutant), line


def moved(ptx: str, what: str, before: str) -> str:
    """The PTX with its first line that has `what`, behind the first one that has `before`, moved in front of that."""
    lines = ptx.split("\n")
    there = next(place for place, line in enumerate(lines) if re.search(before, line))
    here = next(place for place, line in enumerate(lines) if place > there and re.search(what, line))
    return "\n".join([*lines[:there], lines[here], *lines[there:here], *lines[here + 1 :]])


def test_a_stage_is_not_used_after_its_release() -> None:
    """The consumer's arrival in front of the wait for its products."""
    _, made = built(KERNELS, "sm_90a", entry="three_roles", M=256, trips=7, K=448)
    assert caught(made, moved(made.ptx, r"mbarrier\.arrive", r"wgmma\.wait_group"))


def test_a_stage_is_not_filled_before_it_is_acquired() -> None:
    """The first copy in front of the producer's wait."""
    _, made = built(KERNELS, "sm_90a", entry="left_early", M=256, trips=7, K=448)
    assert caught(made, moved(made.ptx, r"cp\.async\.bulk\.tensor", r"_wait:"))


# The second wait of left_early is that of its drain, behind which the role ends.
SWAPPED = [("left_early", 0), ("left_early", 2), ("three_roles", 0), ("three_roles", 1), ("three_roles", 2)]


@pytest.mark.parametrize(("name", "number"), SWAPPED)
def test_each_side_waits_at_its_own_barriers(name: str, number: int) -> None:
    """A wait at the other barrier of its stage, which is 16 bytes further on or back."""
    _, made = built(KERNELS, "sm_90a", entry=name, M=256, trips=7, K=448)
    first = min(int(place) for place in re.findall(r"mbarrier\.init[^\[]*\[%\w+\+(\d+)\]", made.ptx))
    wait = list(re.finditer(r"try_wait\.parity\S* %p\d+, \[%r\d+\+(\d+)\]", made.ptx))[number]
    there = int(wait[1])
    other = there - 16 if (there - first) // 16 % 2 else there + 16
    mutant = made.ptx[: wait.start(1)] + str(other) + made.ptx[wait.end(1) :]
    assert caught(made, mutant)


AFTER_A_WITH = """import tilelang.language as T


@T.prim_func
def kernel(A: T.Tensor((256, 64), "float16"), C: T.Tensor((256, 64), "float16")):
    with T.Kernel(1, threads=256):
        A_shared = T.alloc_shared((64, 64), "float16")
        pipe = T.InputTilePipeline(A_shared, stages=2)
        with T.ws(1):
            producer = pipe.producer()
            for i in T.serial(4):
                with producer.acquire() as tiles:
                    T.copy(A[i * 64, 0], tiles.A_shared)
                if i == 2:
                    continue
        with T.ws(0):
            consumer = pipe.consumer()
            for i in T.serial(4):
                with consumer.acquire() as tiles:
                    T.copy(tiles.A_shared, C[i * 64, 0])
"""


def test_an_iteration_may_end_behind_a_with() -> None:
    """Inside one it must not, for the stage would not be released."""
    assert build_kernel(SourceFile("k.tl", AFTER_A_WITH), CompileOptions(target="sm_90a"), Observer()).cubin
