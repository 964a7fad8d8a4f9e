"""The loops of the GEMM samples that multiply, in the PTX: what they wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SAMPLES, built

from tilec.ptx.module import Entry, Imm, Instruction, Label, Symbol, Vector
from tilec.ptx.parse import parse_module

IN_FLIGHT = (
    *("gemm", "gemm_bias_relu", "gemm/batched", "gemm/bias_gelu", "gemm/cluster", "gemm/dynamic", "gemm/grouped"),
    *("gemm/fp8_row_scaled", "gemm/int8", "gemm/persistent", "gemm/split_k", "gemm/stream_k", "gemm/swiglu"),
    *("gemm/tf32", "gemm/transposed", "gemm/gemm_sm100", "gemm/sparse_2_4"),
)
"""Those in which nothing but products touches the accumulators meanwhile, or what they read in registers."""
UNPACKED = Path(__file__).parent / "unpacked_in_shared.tl"


def loops(entry: Entry) -> list[tuple[Instruction, ...]]:
    """The stretches of code that a branch leads back over, the shortest first."""
    labels = {item.name: at for at, item in enumerate(entry.body) if isinstance(item, Label)}
    found = []
    for at, item in enumerate(entry.body):
        if isinstance(item, Instruction) and item.opcode == "bra" and isinstance(item.operands[0], Symbol):
            start = labels.get(item.operands[0].name, at)
            found.append(tuple(i for i in entry.body[start:at] if isinstance(i, Instruction)))
    return sorted(found, key=len)


def main_loop(ptx: str) -> tuple[Instruction, ...]:
    (entry,) = parse_module(ptx).entries
    return next(loop for loop in loops(entry) if any(i.opcode.startswith("wgmma.mma_async") for i in loop))


def pending(loop: tuple[Instruction, ...]) -> list[int]:
    """What each wait for products leaves in flight."""
    waits = [i.operands[0] for i in loop if i.opcode.startswith("wgmma.wait_group")]
    return [wait.value for wait in waits if isinstance(wait, Imm)]


@pytest.mark.parametrize("name", IN_FLIGHT)
def test_a_product_is_always_in_flight(name: str) -> None:
    _, made = built(SAMPLES / f"{name}.tl", "sm_90a")
    left = pending(main_loop(made.ptx))
    assert left and min(left) >= 1


@pytest.mark.parametrize("size", [1024, 4096])
def test_halves_stay_in_flight_too(size: int) -> None:
    """They come two to a register, and are taken apart only when the loop is over."""
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", M=size, N=size, accum_dtype="float16")
    loop = main_loop(made.ptx)
    assert pending(loop) == [1]
    assert not any(isinstance(operand, Vector) for i in loop if i.opcode == "mov.b32" for operand in i.operands)


def test_threads_that_need_a_result_wait_for_it_under_the_next_product() -> None:
    """No product is in flight at the end of an iteration, where the assembler would have all of them waited for."""
    _, made = built(SAMPLES / "gemm/fp8_block_scaled.tl", "sm_90a")
    assert pending(main_loop(made.ptx)) == [1, 0]


def test_products_that_are_scaled_one_by_one_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one group adds up under the products of the other waits for no barrier of all."""
    for cycles in ("PING_PONG_CYCLES", "UNORDERED_CYCLES"):
        monkeypatch.setattr(f"tilec.passes.choices.choose_ping_pong.{cycles}", 0)
    _, made = built(SAMPLES / "gemm/fp8_block_scaled.tl", "sm_90a")
    assert made.program.roles[0].ping_pong_barrier is not None
    barriers = [i.operands[0] for i in main_loop(made.ptx) if i.opcode == "bar.sync"]
    assert barriers and Imm(1) not in barriers


@pytest.mark.parametrize("block_M", [128, 256])
def test_weights_are_unpacked_under_a_product_however_long_it_is(block_M: int) -> None:
    _, made = built(UNPACKED, "sm_90a", block_M=block_M)
    assert pending(main_loop(made.ptx)) == [1]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("size", [1024, 4096])
def test_whatever_the_depth_and_the_grid(size: int, stages: int) -> None:
    """At 4096 the grid is persistent. Of two versions the one must go back before the next product is due."""
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", M=size, N=size, K=size, num_stages=stages)
    assert pending(main_loop(made.ptx)) == [int(stages > 2)]
