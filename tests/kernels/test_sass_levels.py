"""Pipelines at two levels, in the machine code: the fragments of the next iteration's first step are loaded behind the
wait for its tiles, and under products of this iteration. Without stages of fragments there is no such load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from harness import HERE, built
from sass import PRODUCTS, Code, Instruction, disassembled

from tilec.support.options import Value

BOTH: dict[str, Value] = {"BM": 128, "BN": 128, "BK": 32, "MOST": 16}
"""Of `register_stages.tl`, which multiplies by mma.sync what it has in registers."""
BY_WGMMA: dict[str, Value] = {"BM": 128, "BN": 192, "KI": 16, "threads": 256, "stages": 4, "MOST": 16}
"""Of `gemm_of_parts.tl`."""
STEPS = 64 // 16  # of an iteration of that one


def main_loop(kernel: str, target: str, folder: Path, **defines: Value) -> tuple[Instruction, ...]:
    """The shortest loop with products."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(built(HERE / kernel, target, **defines)[1].cubin)
    code: Code = disassembled(cubin)
    return code.around("HMMA", *PRODUCTS)


def places(loop: tuple[Instruction, ...], *stems: str) -> list[int]:
    return [at for at, one in enumerate(loop) if one.stem in stems]


def for_the_next_iteration(loop: tuple[Instruction, ...]) -> list[int]:
    """The loads of fragments that no product behind them in the text of an iteration reads."""
    return [
        at
        for at in places(loop, "LDSM")
        if not _loaded(loop[at]) & set(chain.from_iterable(_operands(one) for one in loop[at:] if _is_product(one)))
    ]


def _is_product(one: Instruction) -> bool:
    return one.stem in ("HMMA", *PRODUCTS)


def _loaded(load: Instruction) -> set[int]:
    """Four registers from the first on."""
    first = next(_registers(load.operands))
    return set(range(first, first + 4))


def _operands(product: Instruction) -> Iterator[int]:
    """The first registers of the operands: a sum, A, B, and the sum that it is added to."""
    return _registers(",".join(product.operands.split(",")[1:3]))


def _registers(text: str) -> Iterator[int]:
    return (int(number) for number in re.findall(r"\bR(\d+)", text))


def test_fragments_of_the_next_iteration_on_ampere(tmp_path: Path) -> None:
    """Half of the loads of an iteration of two steps: behind its only barrier, and products of the iteration still to
    come."""
    loop = main_loop("register_stages.tl", "sm_80", tmp_path, **BOTH)
    ahead, loads, products = for_the_next_iteration(loop), places(loop, "LDSM"), places(loop, "HMMA")
    (barrier,) = places(loop, "BAR")
    assert len(ahead) == len(loads) / 2
    assert barrier < ahead[0] and ahead[-1] < products[-1]
    between = [at for at in products if ahead[0] < at < ahead[-1]]
    assert len(between) >= len(ahead) / 2  # the one among the other, not one after the other


def test_none_without_stages_on_ampere(tmp_path: Path) -> None:
    loop = main_loop("register_stages.tl", "sm_80", tmp_path, **BOTH, a_stages=1, b_stages=1)
    assert places(loop, "LDSM") and not for_the_next_iteration(loop)


@pytest.mark.parametrize("a_stages", [2, 4])
def test_fragments_of_the_next_iteration_on_hopper(a_stages: int, tmp_path: Path) -> None:
    """An iteration begins with a product. Each load stands behind one and in front of the wait for it, and every wait
    leaves one running; the tiles of the next iteration are waited for in between."""
    loop = main_loop("gemm_of_parts.tl", "sm_90a", tmp_path, **BY_WGMMA, a_stages=a_stages)
    ahead, products, loads = for_the_next_iteration(loop), places(loop, "HGMMA"), places(loop, "LDSM")
    assert len(products) == len(loads) == STEPS and len(ahead) == a_stages - 1
    assert pending(loop) == [1] * STEPS
    acts = [one.stem for one in loop if one.stem in ("HGMMA", "LDSM") or one.opcode == "WARPGROUP.DEPBAR.LE"]
    assert acts == ["HGMMA", "WARPGROUP", "LDSM"] * STEPS
    (tiles,) = (at for at, one in enumerate(loop) if one.opcode.startswith("SYNCS.PHASECHK"))
    assert products[STEPS - a_stages + 1] < tiles < ahead[0]


def test_none_without_stages_on_hopper(tmp_path: Path) -> None:
    loop = main_loop("gemm_of_parts.tl", "sm_90a", tmp_path, **BY_WGMMA, a_stages=1)
    assert places(loop, "LDSM") and not for_the_next_iteration(loop)
    assert set(pending(loop)) == {0}


def pending(loop: tuple[Instruction, ...]) -> list[int]:
    """What each wait for products leaves in flight."""
    return [int(one.operands.split(", ")[1], 16) for one in loop if one.opcode == "WARPGROUP.DEPBAR.LE"]
