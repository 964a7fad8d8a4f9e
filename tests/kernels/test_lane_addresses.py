"""The bank-conflict lint says what the emitted addresses say: the emulator runs the PTX, and the addresses of a warp's
lanes are counted here."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.emu.memory.memory import Memory
from tilec.emu.numbers import Array
from tilec.ir.tile import Parallel, walk_statements
from tilec.passes.layout.shared import lane_addresses
from tilec.passes.layout.shared.lane_addresses import find_conflict_factors
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T


@T.prim_func
def k(A: T.Tensor((64, 64), "{dtype}"), B: T.Tensor((64, 64), "{dtype}"), C: T.Tensor((64, 64), "{dtype}")):
    with T.Kernel(1, threads=128) as bx:
        S = T.alloc_shared((64, {columns}), "{dtype}")
        R = T.alloc_shared((64, {columns}), "{dtype}")
        acc = T.alloc_fragment((64,), "{dtype}")
        for i, j in T.Parallel(64, 64):
            S[i, j] = A[i, j]
            R[i, j] = B[i, j]
        T.clear(acc)
        for j in T.serial(64):
            for i in T.Parallel(64):
                acc[i] = acc[i] + S[i, {index}] * R[i, j]
        for i in T.Parallel(64):
            C[i, 0] = acc[i]
"""


def most_conflicts(ptx: str, run: list[tuple[int, int, Array]], lines: range) -> float:
    """Return the most transactions that a load of the first warp takes, over those that its words need, among the loads
    of these lines of the kernel."""
    located, here = {}, 0
    for number, text in enumerate(ptx.splitlines(), 1):
        if text.strip().startswith(".loc 1 "):
            here = int(text.split()[2])
        located[number] = here
    worst = 0.0
    for at, width, addresses in run:
        if located[at] in lines:
            lanes = 128 // max(width, 4)
            taken = needed = 0
            for first in range(0, len(addresses), lanes):
                words = {int(a) // 4 + k for a in addresses[first : first + lanes] for k in range(max(width // 4, 1))}
                banks: defaultdict[int, int] = defaultdict(int)
                for word in words:
                    banks[word % 32] += 1
                taken += max(banks.values())
                needed += -(-len(words) // 32)
            worst = max(worst, taken / needed)
    return worst


INDICES = ["j", "j ^ (i % 32)", "(j + i) % 64", "63 - j", "(j * 3 + i // 4) % 64"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("columns", "index"), [*((columns, "j") for columns in (64, 65, 66, 72, 80)), *((68, index) for index in INDICES)]
)
def test_conflicts_are_those_of_the_addresses(
    columns: int, index: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceFile("k.tl", KERNEL.format(columns=columns, index=index, dtype=dtype))
    options = CompileOptions(target="sm_80", lint="off")
    plan, made = (
        driver.plan_kernel(source, options, driver.Observer()),
        driver.build_kernel(source, options, driver.Observer()),
    )
    run: list[tuple[int, int, Array]] = []
    load, store = Memory.load, Memory.store

    def record(memory: Memory, addresses: Array, width: int, by: Array | None) -> None:
        if memory.is_shared and by is not None and memory.race_detector is not None and (by < 32).any():
            line = memory.race_detector.steps[memory.race_detector.order.log.pc].instruction.line
            run.append((line, width, addresses[by < 32].copy()))

    def loaded(self: Memory, addresses: Array, width: int, by: Array | None = None, **more: bool) -> Array:
        record(self, addresses, width, by)
        return load(self, addresses, width, by, **more)

    def stored(self: Memory, addresses: Array, width: int, values: Array, by: Array | None = None) -> None:
        record(self, addresses, width, by)
        store(self, addresses, width, values, by)

    monkeypatch.setattr(Memory, "load", loaded)
    monkeypatch.setattr(Memory, "store", stored)
    emulate.emulate_build(made, emulate.draw_arguments(made.kernel, made.manifest, 0))
    nests = [s for s in walk_statements(plan.assignment.kernel.body) if isinstance(s, Parallel)]
    found = {range(n.span.line, n.span.end_line + 1): find_conflict_factors(n, plan.assignment) for n in nests}
    said = {lines: max(tiles.values()) for lines, tiles in found.items() if tiles}
    assert len(said) == 2 and run
    for lines, ways in said.items():
        assert ways == pytest.approx(most_conflicts(made.ptx, run, lines)), lines


def test_the_lint_names_the_worst_of_several_statements() -> None:
    observer = driver.Observer()
    source = SourceFile("k.tl", KERNEL.format(columns=66, index="j", dtype="float32"))
    driver.plan_kernel(source, CompileOptions(target="sm_80"), observer)
    (found,) = (w for w in observer.warnings if w.code == "bank-conflict")
    assert found.primary is not None and found.primary.span.line == 16
    assert found.primary.text == "S takes 4 times as long as its bytes need"


def test_accesses_that_are_alike_are_looked_at_once() -> None:
    """However often the same nests stand in a kernel."""

    def looked_at(count: int) -> int:
        sums = "".join(
            f"        for i, j in T.Parallel(64, 64):\n            S[i, j] += S[i, T.max(j - {step}, 0)]\n"
            for step in (1, 2, 4, 8, 16, 32) * count
        )
        text = KERNEL.format(columns=64, index="j", dtype="float32").replace("        T.clear(acc)\n", sums)
        lane_addresses._compute_conflict_factor.cache_clear()
        driver.plan_kernel(SourceFile("k.tl", text), CompileOptions(), driver.Observer())
        return lane_addresses._compute_conflict_factor.cache_info().misses

    assert looked_at(1) == looked_at(8) > 4
