"""What becomes of samples that are bound by memory: how wide the accesses of tensors are, how many are under way, and
how often anything is read."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references import SAMPLES
from sass import Accesses, accesses, disassembled
from test_every_sample import FOLDER, arguments_of, made

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.emu.memory.memory import Memory
from tilec.passes.cost.model import OccupancyLimits, count_ctas_per_sm
from tilec.target.table import load_target

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Staple:
    """A sample that is bound by memory, and constants that make it quick to emulate without changing what a block does.
    `narrow`: accesses of fewer bytes than 16, of tensors of which a row or a block has an element or a few. `passes`:
    how many times its large tensors are read."""

    name: str
    smaller: dict[str, int]
    narrow: int = 0
    passes: int = 1


STAPLES = (
    Staple("vector_add", {"N": 2048}),
    Staple("elementwise/chain", {"M": 16}),
    Staple("elementwise/gelu", {"N": 8192}),
    Staple("elementwise/swiglu", {"M": 8}),
    Staple("elementwise/rotary", {"tokens": 32, "heads": 2}),
    Staple("elementwise/embedding", {"tokens": 16, "vocabulary": 64}, narrow=4),  # an index for each row
    Staple("elementwise/transpose", {"M": 128, "N": 64}),
    Staple("softmax", {"M": 8}),
    Staple("rows/softmax_shared", {"M": 1}),
    Staple("rows/softmax_held", {"M": 1}),
    Staple("rows/softmax_online", {"M": 1, "N": 16384}, passes=2),
    Staple("rows/layernorm", {"M": 8}),
    Staple("rows/rmsnorm", {"M": 4, "blocks": 2}),
    Staple("rows/row_statistics", {"M": 8}),
    Staple("rows/column_sum", {"M": 128, "N": 256}),
    Staple("rows/cast_fp8_rows", {"M": 8}, narrow=2),  # a scale for each row
    Staple("rows/cast_fp8_groups", {"M": 32}, narrow=2),
    Staple("rows/quantise_activations", {"M": 32, "N": 512}, narrow=4),
    Staple("rows/cast_int8_rows", {"M": 8}, narrow=2),
    Staple("rows/prefix_sum", {"M": 4, "N": 1024}),
    Staple("rows/argmax", {"M": 4, "N": 4096}, narrow=1),  # the place in each row
    Staple("rows/cross_entropy", {"M": 4, "N": 4096}, narrow=8),  # the label of each row, and what stands there
    Staple("rows/gemv_transposed", {"K": 1024, "N": 512}),
    Staple("gemm/gemv", {"M": 8}, narrow=4),  # a result for each row
    Staple("attention/backward_delta", {"rows": 32}, narrow=2),
)


ANSWER = {"sm_80": 1555e9 / 108 / 1.41e9 * 466, "sm_90a": 4.8e12 / 132 / 1.755e9 * 656}
"""Little's law: the bytes that memory delivers to a multiprocessor while a load waits for its value. Bandwidths of an
A100 and an H200 (vendor), latencies of the target files' rows of ld.global."""


@pytest.mark.some(8)
@pytest.mark.parametrize("target", ANSWER)
@pytest.mark.parametrize("staple", STAPLES, ids=lambda staple: staple.name)
def test_accesses_are_wide_and_many(staple: Staple, target: str, tmp_path: Path) -> None:
    """All of 16 bytes, and as many under way as memory takes to answer, in all threads that a multiprocessor holds."""
    built = made(staple.name, target, {})
    (tmp_path / "kernel.cubin").write_bytes(built.cubin)
    found = accesses(disassembled(tmp_path / "kernel.cubin").instructions)
    assert found.narrow <= staple.narrow, found
    assert bytes_in_flight(built, found, target) >= bytes_needed(target), found


def bytes_in_flight(built: Build, found: Accesses, target: str) -> float:
    """On a multiprocessor with all the blocks that it can have, or that there are."""
    (entry,) = built.entries
    program, machine = built.program, load_target(target)
    most = OccupancyLimits(*(machine.limit(name) for name in RESIDENCE))
    held = count_ctas_per_sm(program.smem_bytes, entry.registers, program.threads, most)
    blocks = min(held, math.prod(program.grid) / machine.limit("sms"))
    return blocks * program.threads * found.in_flight


RESIDENCE = (
    "smem_bytes_per_sm", "smem_reserved_bytes_per_cta", "smem_allocation_bytes", "registers_per_sm",
    "registers_allocation_per_warp", "threads_per_sm", "ctas_per_sm",
)  # fmt: skip


def bytes_needed(target: str) -> float:
    """Twice that: blocks that begin, compute or end have nothing in flight."""
    return 2 * ANSWER[target]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Bytes that threads read of each tensor, by loads and by cp.async; a tensor is its name and size in the
    emulator."""
    counts: Counter[tuple[str, int]] = Counter()
    plain = Memory.load

    def counted(self: Memory, addresses: Array, width: int, by: Array | None = None, **more: Any) -> Array:
        if not self.is_shared and by is not None:
            for tensor in self.allocations:
                inside = (addresses >= tensor.start) & (addresses < tensor.end)
                counts[tensor.name, tensor.end - tensor.start] += width * int(inside.sum())
        return plain(self, addresses, width, by, **more)

    monkeypatch.setattr(Memory, "load", counted)
    return counts


@pytest.mark.some(8)
@pytest.mark.parametrize("staple", STAPLES, ids=lambda staple: staple.name)
def test_memory_is_read_once(staple: Staple, read: Counter[tuple[str, int]]) -> None:
    """Large tensors; each row needs all of the small ones."""
    known = next(known for known in SAMPLES if known.path == staple.name)
    built = made(known.path, "sm_90a", staple.smaller)
    emulate.emulate_build(built, arguments_of(known, built))
    largest = max(size for _, size in read)
    passes = max(count / size for (_, size), count in read.items() if 2 * size > largest)
    assert staple.passes - 1 < passes < staple.passes + 0.1
