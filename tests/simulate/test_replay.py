"""The replay, on traces made by hand: each resource, each kind of waiting; and a block of a GEMM counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate.costs import InstructionCosts
from tilec.simulate.engine import Engine
from tilec.simulate.instructions import Deed, Instruction
from tilec.simulate.record import BlockTrace, count_transactions
from tilec.simulate.state import MemoryShares, ReplayResult
from tilec.support import files
from tilec.support.diagnostics import InternalError
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

COSTS = InstructionCosts(load_target("sm_90a"))
SAMPLES = Path(__file__).parents[2] / "samples"
WIDE = MemoryShares(1e9, 1e9)
"""L2 and DRAM that are never the narrowest."""


def step(deed: Deed = "plain", **said: Any) -> Instruction:
    given = {"pc": 0, "text": deed, "file": "", "line": 0, "ptx_line": 1, "reads": (), "writes": (), **said}
    return Instruction(deed=deed, **given)


def replay(warps: list[list[tuple[Instruction, Any]]], shares: MemoryShares = WIDE) -> ReplayResult:
    """Each warp's instructions with their details; the block runs alone."""
    table: list[Instruction] = []
    traces: list[list[tuple[int, Any]]] = []
    for warp in warps:
        traces.append([])
        for instruction, detail in warp:
            traces[-1].append((len(table), detail))
            table.append(instruction)
    return Engine(table, COSTS, shares).run([[BlockTrace((0, 0, 0), traces)]], 1)


def test_a_scheduler_issues_one_instruction_a_cycle() -> None:
    # Warps 0 and 4 have the same scheduler, 1 to 3 have others.
    assert replay([[(step(), None)] * 10] * 4).cycles == 10
    assert replay([[(step(), None)] * 10] * 5).cycles == 20


def test_two_warps_share_a_pipe() -> None:
    mufu = step(pipe=COSTS.pipe("mufu"))
    none: list[tuple[Instruction, Any]] = []
    # 8.5 cycles each, taken in turns: the fourth begins at 25.5.
    found = replay([[(mufu, None)] * 2, none, none, none, [(mufu, None)] * 2])
    assert found.cycles == 26.5
    assert {cause for _, _, cause in found.stalls} == {"special functions"}


def test_a_result_is_awaited() -> None:
    add = COSTS.pipe("elementwise")
    chain = [(step(pipe=add, writes=(0,)), None), (step(pipe=add, reads=(0,), writes=(1,)), None)]
    # Issued at 0 and, four cycles later, at 4.
    assert replay([chain]).cycles == 5
    assert replay([[(step(pipe=add, writes=(0,)), None), (step(pipe=add, reads=(2,)), None)]]).cycles == 2


def test_a_named_barrier_waits_for_the_last() -> None:
    barrier = step("barrier", flag=True)
    early, late = [(barrier, (1, 64))], [(step(), None)] * 7 + [(barrier, (1, 64))]
    found = replay([early, late])
    # The second arrives in cycle 7, and both go on 25 cycles later.
    assert found.cycles == 7 + COSTS.barrier
    assert found.stalls[0, 0, "barrier 1"] == 7 + COSTS.barrier - 1


def copies(count: int) -> list[tuple[Instruction, Any]]:
    """As many copies of 16 KiB to one mbarrier, and a wait for them."""
    at = ((0, 0, 64),)
    return [
        (step("mbarrier.init"), ((0, 64, 1, 1),)),
        (step("mbarrier.arrive", flag=True), ((0, 64, 1, 16384 * count),)),
        *[(step("bulk.load", move="tma.load"), ((16384, 16384, at),))] * count,
        (step("mbarrier.wait", flag=True, writes=(0,)), ((0, 64, 1, 0),)),
    ]


def test_bulk_copies_take_a_latency_and_their_bytes() -> None:
    # Issued in cycle 2. Each copy of 16 KiB waits for the path, 152.925 cycles at 107 bytes a cycle, and 1049 pass
    # behind the last byte. The latency of the row, 1049 and 8.42 for each KiB, has room for less.
    assert replay([copies(1)]).cycles == pytest.approx(2 + 152.925 + 1049)
    assert replay([copies(3)]).cycles == pytest.approx(2 + 3 * 152.925 + 1049)
    # A share of L2 of 32 bytes a cycle is the narrowest: 512 cycles.
    assert replay([copies(1)], MemoryShares(32.0, 1e9)).cycles == 2 + 512 + 1049
    # What others of the wave have loaded, DRAM need not.
    assert replay([copies(1)], MemoryShares(1e9, 16.0, missing=0.5)).cycles == 2 + 512 + 1049


def test_written_bytes_take_dram_longer_the_more_of_them_there_are() -> None:
    costs = InstructionCosts(load_target("sm_90a", gpu="H200"))
    read, even = costs.dram_read_bytes_per_cycle, costs.dram_even_bytes_per_cycle
    assert even < costs.dram_bytes_per_cycle < read
    # Half of the bytes are written: together they take what was measured of such kernels.
    assert (0.5 + 0.5 * costs.price_written_byte(0.5)) / read == pytest.approx(1 / even)
    assert costs.price_written_byte(0) == 1 < costs.price_written_byte(1 / 3) < costs.price_written_byte(0.5)
    # Of an H100 nothing is known of turns.
    assert COSTS.price_written_byte(0.5) == 1
    # 16 KiB at 16 bytes a cycle take 1024 cycles to read, and 1536 to write at one and a half times the price.
    shares = MemoryShares(1e9, 16.0, write_price=1.5)
    assert replay([copies(1)], shares).cycles == 2 + 1024 + 1049
    assert replay([[(step("store", move="st.global"), 16384)]], shares).cycles == 1536


def test_what_bulk_copies_gain_of_shared_lines_copies_of_threads_do_not() -> None:
    """16 KiB at 32 bytes a cycle take 512 cycles; as 32 copies of 512 bytes at 16, of which no other is narrower, 1024
    behind the one that is issued last."""
    shares = MemoryShares(32.0, 1e9, l2_to_threads=16.0)
    assert replay([copies(1)], shares).cycles == 2 + 512 + 1049
    copied = [(step("copy", move="cp.async"), 512)] * 32
    waited = replay([[*copied, (step("copy.wait", text="cp.async.wait_all"), None)]], shares)
    assert waited.cycles == pytest.approx(1024 + COSTS.move("cp.async", 512).base)
    assert replay([copied], MemoryShares(32.0, 1e9)).held["l2"] == 512


def test_a_share_of_dram_that_was_left_to_others_is_given_back() -> None:
    """A copy of 16 KiB at 16 bytes a cycle takes 1024 cycles. The second one comes 100,000 cycles later, when the
    share has been left to others for more than 2000, and waits for nothing; it would wait for 1024 at once."""
    shares = MemoryShares(1e9, 16.0)
    first, second = copies(1), copies(1)
    then = [*second[1:-1], (second[-1][0], ((0, 64, 1, 1),))]
    alone = replay([first], shares).cycles
    assert alone == 2 + 1024 + 1049
    later = replay([[*first, (step(spacing=100_000.0), None), *then]], shares).cycles
    assert later == pytest.approx(alone + 100_000 + COSTS.move("tma.load", 16384).latency, abs=60)


def test_an_arrival_takes_its_time() -> None:
    waiter = [(step("mbarrier.init"), ((0, 64, 1, 1),)), (step("mbarrier.wait", flag=True), ((0, 64, 1, 0),))]
    other = [(step(), None)] * 10 + [(step("mbarrier.arrive"), ((0, 64, 1, 0),))]
    assert replay([waiter, other]).cycles == 10 + COSTS.mbarrier


def test_products_slow_down_the_arithmetic_of_other_warps() -> None:
    """Each instruction that issues while a wgmma runs, of 128 cycles here, takes a cycle more."""
    group = [(step("wgmma", number=256), None), (step("wgmma.commit"), None), (step("wgmma.wait"), None)]
    arithmetic = [(step(), None)] * 40
    none: list[tuple[Instruction, Any]] = []
    alone = replay([none] * 4 + [arithmetic])
    beside = replay([*[group] * 4, arithmetic])
    assert alone.lifetime[4] == 40
    assert beside.lifetime[4] == pytest.approx(2 * 40, abs=4)  # it waits for three warps of the group to issue


def test_the_next_instruction_waits_for_the_assemblers_stall_count() -> None:
    found = replay([[(step(spacing=4.0), None)] * 10])
    assert found.cycles == 40
    assert sum(cycles for (_, _, cause), cycles in found.stalls.items() if "assembler" in cause) == 30
    # Another warp of the same scheduler issues in between.
    assert replay([[(step(spacing=4.0), None)] * 10] * 5).cycles == 41


def test_writes_to_shared_memory_delay_products_that_leave_no_room() -> None:
    """Products of 32 cycles that read shared memory in all of them, and copies of 16 KiB, each 64 cycles of writes: of
    ten, 640 cycles, 256 wait for ever."""
    products = [(step("wgmma", number=64), None)] * 40 + [(step("wgmma.commit"), None), (step("wgmma.wait"), None)]
    copying = copies(10)[:-1]
    assert replay([products] * 4).cycles == 40 * 32 + 72
    assert replay([*[products] * 4, copying]).cycles == pytest.approx(40 * 32 + 72 + 640 - 256, abs=32)


def test_products_queue_at_the_tensor_cores() -> None:
    product = step("wgmma", number=128)
    group = [(product, None), (product, None), (step("wgmma.commit"), None), (step("wgmma.wait"), None)]
    # Two products of 64 cycles, and 72 until the accumulators are there; another warpgroup's come behind them.
    assert replay([group] * 4).cycles == 2 * 64 + 72
    assert replay([group] * 8).cycles == 4 * 64 + 72


def test_loads_wait_for_memory() -> None:
    load_ = step("load", move="ld.global", writes=(0,))
    use = step(reads=(0,))
    assert replay([[(load_, 128), (use, None)]]).cycles == 658 + 1
    shared = step("load", move="ld.shared", writes=(0,))
    # Four transactions instead of one: a conflict of four ways.
    assert replay([[(shared, 128), (use, None)]]).cycles == 23 + 1
    assert replay([[(shared, 512), (use, None)]]).cycles == 26 + 1


def test_products_give_way_to_what_warps_read() -> None:
    product, end = step("wgmma", number=256), [(step("wgmma.commit"), None), (step("wgmma.wait"), None)]
    load_ = step("load", move="ld.shared", writes=(0,))
    # A product of 128 cycles reads shared memory for 80 of them: a load waits for none of two.
    twice = [(product, None)] * 2 + end
    found = replay([twice] * 4 + [[(load_, 128), (step(reads=(0,)), None)]])
    assert found.cycles == 2 * 128 + 72
    assert sum(cycles for (_, _, cause), cycles in found.stalls.items() if cause == "shared memory") == 22
    # 64 cycles of loads are 16 more than there is room for beside the product.
    apart = [(product, None), *end] * 2
    assert replay([apart] * 4).cycles == 2 * (128 + 72)
    many = [(step("load", move="ld.shared"), 1024)] * 8
    assert replay([apart] * 4 + [many]).cycles == 2 * (128 + 72) + 16


def test_a_block_that_waits_for_ever_is_no_result() -> None:
    with pytest.raises(InternalError):
        replay([[(step("mbarrier.init"), ((0, 64, 1, 1),)), (step("mbarrier.wait", flag=True), ((0, 64, 1, 0),))]])


@pytest.mark.parametrize(
    ("stride", "width", "turns"), [(4, 4, 1), (8, 4, 2), (128, 4, 32), (0, 4, 1), (16, 16, 4), (128, 16, 32), (8, 8, 2)]
)
def test_bank_conflicts_are_those_of_the_addresses(stride: int, width: int, turns: int) -> None:
    assert count_transactions(np.arange(32) * stride, width) == turns


def test_a_block_of_a_gemm_counted_by_hand() -> None:
    """128 × 128 × 256 of samples/gemm.tl: one block, four stages of 32 KiB, a producer and two warpgroups; by the PTX,
    without its machine code.

    The count, event by event, in cycles:

    * 34: the last warp is at the barrier that follows the initialisation (three warps on a scheduler, eleven
      instructions each); 25 more until all go on: 59.
    * Warps 0, 4 and 8 share an integer pipe. The first two have 16 instructions of 2 cycles and 8 of 4 before they wait
      for data: 128, and the producer is through with its own among them: 187.
    * The producer finds the stage free (20), says what it expects (2), and computes where to copy (2 · 4): 217.
    * A stage is 32768 bytes at 107 a cycle: 306. The first is through at 523 and there 1049 later, at 1572. The others
      come 306 cycles apart, and a stage takes the tensor cores 8 products of 64 cycles, 512: they wait for none of
      the other stages.
    * The wait, the fence and two descriptors take 25; 4 · 512 for the products, 72 until they can be read: 3717.
    * Where the ring goes on, 24, and a barrier, 25: 3766. Then both warps of a scheduler convert and compute addresses
      in 31 integer instructions of 2 cycles: 124; three more pieces of 29 (four conversions, five instructions that
      wait for each other), a barrier of 27 with its issue, 20 for the coordinates: 4024.
    * The second half has the pipe for itself: 62 and the 29 of its last piece's addresses, three pieces of 29, and a
      barrier of 27: 4229. The store of 8 KiB takes 272: 4501.
    """
    by_hand = 59 + 128 + 30 + 306 + 1049 + 25 + 4 * 512 + 72 + 24 + 25
    by_hand += 124 + 3 * 29 + 27 + 20 + 62 + 29 + 3 * 29 + 27 + 272
    assert by_hand == 4501
    source = files.read_source(str(SAMPLES / "gemm.tl"))
    defines = (("M", 128), ("N", 128), ("K", 256))
    build = driver.build_kernel(source, CompileOptions(target="sm_90a", defines=defines), driver.Observer())
    found = simulate.simulate_build(replace(build, cubin=b""), load_target("sm_90a"))
    assert found.cycles == pytest.approx(by_hand, rel=0.02)
    assert found.flops == 2 * 128 * 128 * 256
    assert found.loaded == 2 * 128 * 256 * 2
    assert found.stored == 128 * 128 * 2


def test_passes_of_a_loop_are_those_of_the_first_of_several_resident_blocks() -> None:
    branch = step()
    block = BlockTrace((0, 0, 0), [[(0, None)] * 6])
    found = Engine([branch], COSTS, WIDE, loops=frozenset({0})).run([[block]] * 8, 4)
    assert len(found.marks[0, 0]) == 6
    # Each block's warp has a scheduler of its own.
    assert found.marks[0, 0] == [0, 1, 2, 3, 4, 5]


def test_what_was_seen_goes_on_in_the_same_way() -> None:
    seen = ReplayResult(
        100.0, stalls={(0, 3, "barrier"): 10.0}, issued={0: 30.0, 1: 4.0}, lifetime={0: 90.0}, held={"tensor": 40.0}
    )
    seen.stretch_to(250.0)
    assert (seen.cycles, seen.held, seen.lifetime) == (250.0, {"tensor": 100.0}, {0: 225.0})
    assert (seen.stalls, seen.issued) == ({(0, 3, "barrier"): 25.0}, {0: 75.0, 1: 10.0})
