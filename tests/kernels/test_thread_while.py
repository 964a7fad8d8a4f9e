"""A `while` whose condition differs from thread to thread, against Python's own loop for each of them."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import HEAD, runs

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

COLLATZ = """n = T.alloc_var("int32", A[tx])
        steps = T.alloc_var("int32", 0)
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        B[tx] = steps"""
NESTED = """outer = T.alloc_var("int32", A[tx] % 5)
        steps = T.alloc_var("int32", 0)
        while outer > 0:
            inner = T.alloc_var("int32", outer)
            while inner > 0:
                if inner == 2:
                    inner -= 1
                    continue
                steps += 1
                inner -= 1
            outer -= 1
        B[tx] = steps"""


def count_collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def count_nested(n: int) -> int:
    return sum(max(outer - (outer >= 2), 0) for outer in range(1, n % 5 + 1))


def write_kernel(work: str, threads: int = 96, before: str = "") -> str:
    """The text of a kernel of one block, in which each thread does this work."""
    return f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor(({threads},), "int32"), B: T.Tensor(({threads},), "int32")):
    with T.Kernel(1, threads={threads}):
        tx = T.get_thread_binding()
        {before}{work}
"""


def build(text: str) -> Build:
    return build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())


def run(text: str, threads: int = 96) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that a kernel reads, from 1 on, and what it makes of them."""
    made = build(text)
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 0)
    arguments.tensors["A"][:] = np.arange(1, threads + 1)
    arguments.tensors["B"][:] = -1
    given = arguments.copy()
    emulate.emulate_build(made, arguments)
    expected = given.copy()
    emulate.run_reference(made.kernel, expected)
    np.testing.assert_array_equal(arguments.tensors["B"], expected.tensors["B"])
    return given.tensors["A"], arguments.tensors["B"]


@pytest.mark.parametrize("threads", [96, 40])
def test_each_thread_runs_its_own_number_of_iterations(threads: int) -> None:
    """Check blocks of whole warps and of others."""
    numbers, steps = run(write_kernel(COLLATZ, threads), threads)
    assert steps.tolist() == [count_collatz(int(n)) for n in numbers]


def test_a_loop_inside_another() -> None:
    numbers, steps = run(write_kernel(NESTED))
    assert steps.tolist() == [count_nested(int(n)) for n in numbers]


def test_a_loop_of_some_threads() -> None:
    """Check that the other threads keep what they have, and take no part in the loop's work."""
    work = COLLATZ.replace("\n", "\n    ")
    numbers, steps = run(write_kernel(work, before="if tx % 3 == 1:\n            "))
    expected = [count_collatz(int(n)) if place % 3 == 1 else -1 for place, n in enumerate(numbers)]
    assert steps.tolist() == expected


def test_a_thread_that_has_left_does_not_come_back() -> None:
    """Check a condition that holds again, by what other threads do in the loop."""
    text = write_kernel("""left = T.alloc_shared((1,), "int32")
        steps = T.alloc_var("int32", 0)
        if tx == 0:
            left[0] = 0
        while (tx == 5 and steps < 4) or (tx != 5 and left[0] > 0):
            steps += 1
            left[0] = 1
        B[tx] = steps""")
    _, steps = run(text)
    assert steps.tolist() == [4 if place == 5 else 0 for place in range(96)]


ROLES = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((32,), "int32"), B: T.Tensor((32,), "int32")):
    with T.Kernel(1, threads=64):
        counted = T.alloc_shared((32,), "int32")
        full = T.alloc_barrier([32])
        tx = T.get_thread_binding()
        if tx < 32:
            n = T.alloc_var("int32", A[tx])
            counted[tx] = 0
            while n > 0:
                n -= 3
                counted[tx] += 1
            T.barrier_arrive(full)
        else:
            T.barrier_wait(full, 0)
            B[tx - 32] = counted[tx - 32]
"""


def test_a_loop_in_a_role_of_one_warp() -> None:
    """Check the result, and that the warp asks itself by a vote, not the whole block."""
    made = runs(ROLES, "sm_90a")
    assert "vote.sync.any" in made.ptx and "bar.red" not in made.ptx
    numbers, counted = run(ROLES, 32)
    assert counted.tolist() == [-(-int(n) // 3) for n in numbers]


def test_elements_of_the_thread_itself_may_be_written_around_its_loop() -> None:
    """Check a loop that counts in shared memory, and is done again by a loop around it."""
    numbers, found = run(
        write_kernel("""counted = T.alloc_shared((96,), "int32")
        for k in T.serial(3):
            counted[tx] = k
            while counted[tx] < A[tx]:
                counted[tx] += 2
            B[tx] = counted[tx]""")
    )
    assert found.tolist() == [max(2, n + n % 2) for n in numbers.tolist()]


@pytest.mark.parametrize(
    "reset", ["T.clear(c)", "c[95 - tx] = 0", "for i in T.Parallel(96):\n                c[i] = 0"]
)
def test_a_loop_that_writes_what_it_reads_needs_no_other_thread(reset: str) -> None:
    """Check elements that others set behind the loop, or in the next iteration of one around it."""
    numbers, found = run(
        write_kernel(f"""c = T.alloc_shared((96,), "int32")
        for k in T.serial(2):
            {reset}
            T.sync_threads()
            while c[tx] < A[tx] % 7:
                c[tx] += 1
            B[tx] = c[tx]
            T.sync_threads()""")
    )
    assert found.tolist() == (numbers % 7).tolist()


def test_an_unrolled_loop_is_left_early() -> None:
    """Check that `break` out of T.unroll, whose iterations are a hint, leaves the loop."""
    work = """for i in T.unroll(8):
            if i == A[0] + 2:
                break
            B[i] = i * 10"""
    _, found = run(write_kernel(work))
    assert found.tolist() == [0, 10, 20, *(-1,) * 93]


@pytest.mark.parametrize("loop", ["serial", "unroll"])
def test_a_loop_with_an_own_array_is_left_early(loop: str) -> None:
    """Check that a short loop is not written out for the sake of an array's index where `break` leaves it."""
    work = f"""r = T.alloc_local((4,), "int32")
        for i in T.{loop}(4):
            r[i] = i * A[tx]
            if i == A[1]:
                break
        B[tx] = r[1] + r[2]"""
    numbers, found = run(write_kernel(work))
    assert found.tolist() == (3 * numbers).tolist()


def test_an_array_that_all_threads_set_alike_makes_a_loop_of_the_block() -> None:
    """Check a condition on an element of T.alloc_local, by copies of whole tiles in the loop."""
    text = write_kernel("""n = T.alloc_local((1,), "int32")
        part = T.alloc_shared((32,), "int32")
        n[0] = 2
        while n[0] >= 0:
            T.copy(A[n[0] * 32], part)
            T.copy(part, B[n[0] * 32])
            n[0] -= 1""")
    numbers, found = run(text)
    assert found.tolist() == numbers.tolist()


@pytest.mark.parametrize(
    "vote", ["T.any_sync(n > 300 + tx) != 0", "T.all_sync(n > 200 + tx)", "T.warp_reduce_max(n) > 300"]
)
def test_a_vote_of_the_only_warp_ends_a_loop_of_the_block(vote: str) -> None:
    """Check that what is the same in all threads of a block may decide when all of them leave."""
    work = f"""n = T.alloc_var("int32", 0)
        for i in T.serial(32):
            n += A[i]
            if {vote}:
                T.loop_break()
        B[tx] = n"""
    numbers, found = run(write_kernel(work, 32), 32)
    sums = numbers.cumsum()
    assert (found == sums[sums > (231 if "all" in vote else 300)][0]).all()


WAIT = """flag = T.alloc_shared((1,), "int32")
        seen = T.alloc_var("int32", 0)
        if tx == 0:
            flag[0] = 0
        if tx == 7:
            while seen == 0:
                seen = T.atomic_load(flag[0], memory_order="acquire")
        BEHIND
        B[tx] = seen"""
"""A loop of one thread, which reads what others may write."""


def test_a_thread_may_wait_for_what_stands_before_its_loop() -> None:
    _, seen = run(write_kernel(WAIT.replace("flag[0] = 0", "flag[0] = 1").replace("BEHIND", "pass")))
    assert seen.tolist() == [1 if place == 7 else 0 for place in range(96)]


LATE = "if tx == 1:\n            T.atomic_store(flag[0], 1, memory_order='release')"
OWN = "if tx == 7:\n            T.atomic_store(flag[0], 2, memory_order='release')"
AMONG = """flag = T.alloc_shared((1,), "int32")
        while flag[0] == 0 and tx > 0:
            pass
        if tx == 0:
            flag[0] = 1"""
WRITTEN_WITHIN = """flag = T.alloc_shared((1,), "int32")
        if tx == 0:
            flag[0] = 0
        while flag[0] < 2 and tx > 0:
            if tx == 5 and flag[0] == 0:
                flag[0] = 1
        if tx == 0:
            flag[0] = 2"""


LOCK = """lock = T.alloc_shared((1,), "int32")
        taken = T.alloc_var("int32", 1)
        if tx == 0:
            lock[0] = 0
        while taken != 0:
            taken = T.atomic_add(lock[0], 1, return_prev=True)
        B[tx] = 5
        lock[0] = 0"""
TICKETS = """drawn = T.alloc_shared((1,), "int32")
        ticket = T.alloc_var("int32", 0)
        if tx == 0:
            drawn[0] = 0
        while ticket < 200:
            ticket = T.atomic_add(drawn[0], 1, return_prev=True)
        B[tx] = drawn[0]"""


def test_threads_may_draw_tickets_until_there_are_none() -> None:
    """Check an atomic update that decides when a thread leaves, of what nothing else writes behind the loop."""
    _, drawn = run(write_kernel(TICKETS))
    assert (drawn >= 200).all()


def test_what_the_thread_itself_writes_behind_its_loop_is_no_obstacle() -> None:
    build(write_kernel(WAIT.replace("BEHIND", OWN)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (write_kernel(WAIT.replace("BEHIND", LATE)), "this `while` reads flag, and other threads"),
        (write_kernel(LOCK), "this `while` reads lock, and other threads"),
        (write_kernel(AMONG), "this `while` reads flag, and other threads"),
        (write_kernel(WRITTEN_WITHIN), "this `while` reads flag, and other threads"),
        (ROLES.replace("if tx < 32:", "if tx < 64:").replace("threads=64", "threads=96"), "in a role must be the same"),
        (write_kernel("if tx > A[0]:\n            while True:\n                break"), "its condition never changes"),
        (
            write_kernel("n = T.alloc_var('int32', tx)\n        while n > 0:\n            n -= 1\n            break"),
            "`break` is under a condition on the thread",
        ),
    ],
    ids=[
        "waits for a later write",
        "takes a lock",
        "waits among themselves",
        "also written within",
        "role of two warps",
        "endless",
        "break",
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        build(text)
