"""Probes of the arithmetic pipes: fused multiply-add, the transcendental unit, shuffles, and the clock itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilec.calibrate.probe import Array, Probe, Run, emit_loop, emit_timed, emit_timed_twice, expect_same_word

CHAIN = 32
TOLERANCE = 1e-3
"""The relative tolerance of a chain's end. Each instruction is an approximation with an error of at most 2⁻¹¹; a chain
that converges fast to a fixed point forgets the errors of all links but the last."""
MUFU: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "ex2": ("neg.ftz.f32 {t}, {x};", "ex2.approx.ftz.f32 {x}, {t};", lambda x: np.exp2(-x)),
    "rcp": ("add.ftz.f32 {x}, {x}, 0f3F800000;", "rcp.approx.ftz.f32 {x}, {x};", lambda x: 1 / (x + 1)),
    "rsqrt": ("", "rsqrt.approx.ftz.f32 {x}, {x};", lambda x: 1 / np.sqrt(x)),
    "tanh": ("add.ftz.f32 {x}, {x}, 0f3F800000;", "tanh.approx.f32 {x}, {x};", lambda x: np.tanh(x + 1)),
}
"""Before the instruction: an operation with an addition's time, which keeps the chain from a fixed point of 0 and from
two links that undo each other. Then the instruction, and its meaning."""
START = 0.75
WARPS, CHAINS, ROUNDS = 8, 4, 8


def build_arithmetic_probes() -> Iterator[Probe]:
    """Yield the probes of multiply-adds, transcendental instructions, shuffles and the clock."""
    yield Probe("fma latency", _emit_fma_chain(), _compute_expected_halving, 2 * CHAIN)
    yield Probe(
        "clock of one SM",
        _emit_fma_chain(both=True),
        _compute_expected_halving,
        1,
        (1000, 41000),
        readings=("cycles", "ns"),
    )
    for name in MUFU:
        body, result = _emit_mufu_chains(name, 1, CHAIN), _expect_iterated(name, CHAIN, 32)
        yield Probe(f"{name} latency", body, result, CHAIN, tolerance=TOLERANCE)
        body, result = _emit_mufu_chains(name, CHAINS, ROUNDS), _expect_iterated(name, ROUNDS, 32 * WARPS)
        # The operations of one scheduler, which has two of the eight warps.
        each = CHAINS * ROUNDS * WARPS // 4
        yield Probe(f"{name} throughput", body, result, each, threads=32 * WARPS, tolerance=TOLERANCE)
    largest = expect_same_word(lambda run: 31.0, 32, np.float32)
    yield Probe("shuffle and maximum latency", _emit_shuffle_chain(), largest, CHAIN)


def _format_float_literal(value: float) -> str:
    """Return a number as a PTX literal of an fp32 value: 0f and eight hexadecimal digits."""
    return f"0f{np.float32(value).view(np.uint32):08X}"


def _emit_fma_chain(both: bool = False) -> str:
    """Return PTX that times a loop of x = x / 2 + 1 / 2 from the thread's index, with x to %word; `both`: in cycles and
    ns.
    """
    half = _format_float_literal(0.5)
    chain = "\n".join([f"    fma.rn.f32 %f0, %f0, {half}, {half};"] * (2 * CHAIN))
    body = emit_loop(chain)
    return f"""    cvt.rn.f32.u32 %f0, %thread;
    bar.sync 0;
{emit_timed_twice(body) if both else emit_timed(body)}    mov.b32 %word, %f0;
"""


def _compute_expected_halving(run: Run) -> Array:
    """Return the words that every block's 32 threads have after the chain of x / 2 + 1 / 2 from their index."""
    x = np.arange(32, dtype=np.float32)
    for _ in range(min(2 * CHAIN * run.trip_count, 100)):
        x = x * np.float32(0.5) + np.float32(0.5)
    return np.tile(x, (run.blocks, 1))


def _emit_mufu_chains(name: str, chains: int, rounds: int) -> str:
    """Return PTX that times a loop of `rounds` links of each of `chains` chains of MUFU[`name`]; %word gets their
    maximum."""
    before, instruction, _ = MUFU[name]
    lines = [
        f"    {text.format(x=f'%f{chain}', t=f'%f{chain + 16}')}"
        for _ in range(rounds)
        for chain in range(chains)
        for text in (before, instruction)
        if text
    ]
    starts = "".join(f"    mov.f32 %f{chain}, {_format_float_literal(START)};\n" for chain in range(chains))
    largest = "".join(f"    max.f32 %f0, %f0, %f{chain};\n" for chain in range(1, chains))
    return f"""{starts}    bar.sync 0;
{emit_timed(emit_loop(chr(10).join(lines)))}{largest}    mov.b32 %word, %f0;
"""


def _expect_iterated(name: str, rounds: int, threads: int) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: MUFU's function applied rounds × trip count times to START."""

    def compute_words(run: Run) -> Array:
        """Return START with the function applied rounds × trip count times, for every thread of every block."""
        x = np.float64(START)
        for _ in range(rounds * run.trip_count):
            x = MUFU[name][2](x)
        return np.full((run.blocks, threads), x, np.float32)

    return compute_words


def _emit_shuffle_chain() -> str:
    """Return PTX that times a loop of shuffles and maxima, which spreads the largest lane number to all lanes."""
    steps = "\n".join(
        f"    shfl.sync.bfly.b32 %f1, %f0, {1 << step % 5}, 31, -1;\n    max.f32 %f0, %f0, %f1;"
        for step in range(CHAIN)
    )
    return f"""    cvt.rn.f32.u32 %f0, %lane;
    bar.sync 0;
{emit_timed(emit_loop(steps))}    mov.b32 %word, %f0;
"""
