"""T.rng_*: the PTX that ships, in the emulator, against Philox 4x32-10 and cuRAND's conversions written in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_scalar_names import TARGETS, compiled, run

from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError

MASK = 0xFFFFFFFF


def philox(counter: list[int], key: list[int]) -> list[int]:
    """The published algorithm, with Python's integers."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second >> 32 ^ counter[1] ^ key[0], second & MASK, first >> 32 ^ counter[3] ^ key[1], first & MASK
        ]  # fmt: skip
        key = [key[0] + 0x9E3779B9 & MASK, key[1] + 0xBB67AE85 & MASK]
    return counter


class Curand:
    """curand_init and curand of a curandStatePhilox4_32_10_t."""

    def __init__(self, seed: int, sequence: int, offset: int) -> None:
        self.key = [seed & MASK, seed >> 32 & MASK]
        self.sequence, self.position = sequence, offset
        self.extra: float | None = None

    def __call__(self) -> int:
        block, word = divmod(self.position, 4)
        self.position += 1
        counter = [block & MASK, block >> 32, self.sequence & MASK, self.sequence >> 32 & MASK]
        return philox(counter, self.key)[word]

    def uniform(self) -> np.float32:
        return np.float32(self()) * np.float32(2.0**-32) + np.float32(2.0**-33)

    def uniform_double(self) -> float:
        return self() * 2.0**-32 + 2.0**-32

    def normal(self) -> float:
        if self.extra is not None:
            value, self.extra = self.extra, None
            return value
        u, v = float(self.uniform()), self()
        turn = np.float32(2.0**-32 * 2 * math.pi)
        angle = float(np.float32(v) * turn + turn / np.float32(2))
        size = math.sqrt(-2 * math.log(u))
        self.extra = size * math.cos(angle)
        return size * math.sin(angle)


def test_the_oracle_has_the_published_answers() -> None:
    """Random123's known answers of philox 4x32-10 (kat_vectors)."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(pi, [0xA4093822, 0x299F31D0]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


OF_THREADS = """
@T.prim_func
def k(A: T.Tensor((2, 3, 64, 6), "uint32"), B: T.Tensor((2, 3, 64, 3), "float32"),
      C: T.Tensor((2, 3, 64, 2), "float64"), D: T.Tensor((2, 3, 64, 5), "float32")):
    with T.Kernel(3, 2, threads=(32, 2)) as (bx, by):
        t = T.get_thread_binding(0) + 32 * T.get_thread_binding(1)
        T.rng_init(SEED)
        for i in T.serial(6):
            A[by, bx, t, i] = T.rng_rand()
        T.rng_rand()
        for i in T.vectorized(3):
            B[by, bx, t, i] = T.rng_rand_float()
        for i in T.serial(2):
            if t % 2 == 0:
                C[by, bx, t, i] = T.rng_rand_float(bit=64)
        for i in range(5):
            D[by, bx, t, i] = T.rng_rand_float(dist="normal")
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [42, 0x123456789ABCDEF0])
def test_every_thread_has_a_sequence(target: str, seed: int) -> None:
    text = OF_THREADS.replace("SEED", str(seed)) if seed < 1 << 31 else OF_THREADS.replace("SEED", f"T.uint64({seed})")
    zeros = np.zeros((2, 3, 64, 2), np.float64)
    found = run(text, target, reference=False, C=zeros)
    for by in range(2):
        for bx in range(3):
            for t in range(64):
                draw = Curand(seed, (by * 3 + bx) * 64 + t, 0)
                place = (by, bx, t)
                assert found["A"][place].tolist() == [draw() for _ in range(6)]
                draw()
                assert found["B"][place].tolist() == [draw.uniform() for _ in range(3)]
                if t % 2 == 0:
                    assert found["C"][place].tolist() == [draw.uniform_double() for _ in range(2)]
                normal = [draw.normal() for _ in range(5)]
                np.testing.assert_allclose(found["D"][place], normal, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_the_reference_draws_the_same_numbers(target: str) -> None:
    """But for the last digits of normal ones."""
    found = run(
        """
@T.prim_func
def k(A: T.Tensor((64, 6), "uint32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float64")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        T.rng_init(7, 3, t)
        for i in T.serial(6):
            A[t, i] = T.rng_rand()
        B[t] = T.rng_rand_float()
        C[t] = T.rng_rand_float(64)
""",
        target,
    )
    assert found["A"][9].tolist() == [Curand(7, 3, 9 + i)() for i in range(6)]


SHARED_OUT = """
@T.prim_func
def k(A: T.Tensor((500,), "uint32"), S: T.Tensor((500,), "int32")):
    with T.Kernel(2, threads=THREADS) as bx:
        T.rng_init(9, 5, bx * 300)
        for i in T.Parallel(250):
            A[bx * 250 + i] = T.rng_rand()
            S[bx * 250 + i] = i
"""


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_threads_share_out(target: str) -> None:
    """All threads have one sequence here, and each draws it from the start, for the elements that it has."""
    for threads, size in ((32, 10), (64, 250)):
        text = SHARED_OUT.replace("THREADS", str(threads)).replace("250", str(size)).replace("500", str(2 * size))
        found = run(text, target, reference=False)
        for block in range(2):
            draw = Curand(9, 5, block * 300)
            held = found["A"][block * size : (block + 1) * size]
            counts = [int((held == value).sum()) for value in (draw() for _ in range(12))]
            assert sum(counts) == size and counts == sorted(counts, reverse=True) and counts[0] <= threads
        assert found["S"].tolist() == 2 * list(range(size))


ONE_THREAD = """
@T.prim_func
def k(A: T.Tensor((3, 5, 4), "uint32"), B: T.Tensor((3, 7), "float32")):
    with T.Kernel(3, threads=THREADS) as bx:
        T.rng_init(9, 5, bx * 300)
        for i, j in T.Parallel(5, 4):
            if i + j < 7:
                A[bx, i, j] = T.rng_rand()
            else:
                A[bx, i, j] = i
        for i in T.Parallel(7):
            B[bx, i] = T.rng_rand_float()
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_block_of_one_thread_draws_all_elements_in_order(target: str) -> None:
    """Check that the other threads of the warp, which have no generator, draw nothing."""
    found = run(ONE_THREAD.replace("THREADS", "1"), target)
    for block in range(3):
        draw = Curand(9, 5, block * 300)
        assert found["A"][block].tolist() == [[draw() if i + j < 7 else i for j in range(4)] for i in range(5)]
        assert found["B"][block].tolist() == [draw.uniform() for _ in range(7)]


def test_elements_are_not_shared_out_over_part_of_a_warp() -> None:
    """Check that a draw of elements by some threads of a warp is refused, as the others have no generator."""
    with pytest.raises(CompileError, match=r"random numbers in T\.Parallel need whole warps") as refused:
        compiled(ONE_THREAD.replace("THREADS", "40"), "sm_80")
    assert refused.value.diagnostics[0].help == "give T.Kernel threads=64, or draw in T.serial"


def test_the_reference_cannot_say_who_has_an_element() -> None:
    made = compiled(SHARED_OUT.replace("THREADS", "64"), "sm_80")
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    with pytest.raises(CompileError) as refused:
        emulate.run_reference(made.kernel, given)
    assert refused.value.diagnostics[0].code == "no-reference"
