"""How tensor memory is allocated and given back in our PTX, and that the emulator misses what is wrong there: the order
of alloc, relinquish and dealloc, who uses the columns when, and the fences where threads meet."""

from __future__ import annotations

import re

import pytest
from harness import HERE, SAMPLES, built
from test_adversary import compute

from tilec.driver.build import Build
from tilec.emu import Fault

TARGET = "sm_100a"
ALLOC = r".*tcgen05\.alloc.*\n"
RELINQUISH = r".*tcgen05\.relinquish_alloc_permit.*\n"
DEALLOC = r".*tcgen05\.dealloc\S* (%r\d+), (\d+);\n"


@pytest.fixture(scope="module")
def made() -> Build:
    return built(HERE / "tensor_sums.tl", TARGET, entry="gemm", M=128, N=64)[1]


def faults(made: Build, ptx: str) -> set[str]:
    """What is found in these texts of the kernel, by a friendly machine and others; "numbers" where only those are
    wrong."""
    found = set()
    for adversary in (None, 1, 2, 3):
        try:
            if not compute(made, ptx, adversary):
                found.add("numbers")
        except Fault as fault:
            found.add(fault.kind)
    return found


def one(pattern: str, ptx: str) -> str:
    (match,) = re.finditer(pattern, ptx)
    return match.group()


def test_all_of_it_is_right(made: Build) -> None:
    assert faults(made, made.ptx) == set()


@pytest.mark.parametrize("path", ["gemm.tl", "gemm/gemm_sm100.tl", "attention/flash_attention_sm100.tl"])
def test_a_block_gives_up_its_right_at_once(path: str) -> None:
    """Else another block of the multiprocessor could not allocate before this one ends."""
    ptx = built(SAMPLES / path, TARGET)[1].ptx
    assert re.search(ALLOC + RELINQUISH, ptx)
    assert len(re.findall(RELINQUISH, ptx)) == len(re.findall(ALLOC, ptx)) == len(re.findall(DEALLOC, ptx)) == 1


def test_columns_that_nobody_gives_back(made: Build) -> None:
    assert faults(made, re.sub(DEALLOC, "", made.ptx)) == {"tmem-leak"}


def test_columns_that_are_given_back_twice(made: Build) -> None:
    assert faults(made, re.sub(DEALLOC, lambda m: m.group() * 2, made.ptx)) == {"bad-tmem-allocation"}


def test_fewer_columns_are_given_back(made: Build) -> None:
    columns = re.search(DEALLOC, made.ptx)
    assert columns is not None
    fewer = columns.group().replace(f", {columns[2]};", f", {int(columns[2]) // 2};")
    assert faults(made, made.ptx.replace(columns.group(), fewer)) == {"bad-tmem-allocation"}


def test_an_allocation_after_the_right_is_given_up(made: Build) -> None:
    alloc, relinquish = one(ALLOC, made.ptx), one(RELINQUISH, made.ptx)
    assert faults(made, made.ptx.replace(alloc + relinquish, relinquish + alloc)) == {"bad-tmem-allocation"}


def test_columns_are_given_back_before_they_are_read(made: Build) -> None:
    """The last use stands behind the dealloc then."""
    dealloc = re.search(DEALLOC, made.ptx)
    load = re.search(r"(.*tcgen05\.ld\.)(.*\n)(.*\n)*?.*tcgen05\.wait::ld.*\n", made.ptx)
    assert dealloc is not None and load is not None
    late = made.ptx.replace(dealloc.group(), dealloc.group() + load.group())
    assert faults(made, late) & {"bad-tmem-allocation", "out-of-bounds", "unwritten-read"}


def test_fences_behind_where_threads_meet(made: Build) -> None:
    """All of them at once: some serve only in other orders."""
    assert faults(made, re.sub(r".*tcgen05\.fence::after_thread_sync;\n", "", made.ptx))
