"""Probes of shared memory: loads, stores and their matrix forms, without bank conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tilec.calibrate.probe import Array, Probe, Run, emit_fill, emit_loop, emit_timed, expect_same_word
from tilec.target.names import Feature

CHAIN = 32
WARPS, ACCESSES = 8, 8
ACCESS_BYTES = 512
"""The bytes of an access of a warp: 16 a lane."""
REGION = 2 * ACCESSES * ACCESS_BYTES
"""The bytes of a warp's region: it alternates between two halves, so that no access repeats the one before."""
THREADS = 32 * WARPS
SM_BYTES = WARPS * ACCESSES * ACCESS_BYTES
"""The bytes that all warps move in an iteration."""


NONE: tuple[Feature, ...] = ()
LDMATRIX: tuple[Feature, ...] = ("ldmatrix",)
STMATRIX: tuple[Feature, ...] = ("stmatrix",)


def build_shared_probes() -> Iterator[Probe]:
    """Yield the probes of loads from and stores to shared memory, plain and of matrices."""
    chase = _emit_address_chase("ld.shared.b32 %r10, [%r10];", 4, 32)
    yield Probe("ld.shared latency", chase, _expect_own_address(4), CHAIN, smem_bytes=128)
    matrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r10];"
    chase = _emit_address_chase(matrix, 16, 128)
    yield Probe("ldmatrix latency", chase, _expect_own_address(16), CHAIN, smem_bytes=512, features=LDMATRIX)
    for name, access, feature in (
        ("ld.shared", "ld.shared.v4.b32 {{{v}}}, [{at}];", NONE),
        ("ldmatrix", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{v}}}, [{at}];", LDMATRIX),
    ):
        loaded = expect_same_word(lambda run: 4 * ACCESSES * run.trip_count, THREADS)
        body = _emit_load_stream(access)
        yield Probe(f"{name} throughput", body, loaded, 1, (256, 4096), THREADS, WARPS * REGION, feature)
    for name, access, feature in (
        ("st.shared", "st.shared.v4.b32 [{at}], {{%left, %left, %left, %left}};", NONE),
        ("stmatrix", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{at}], {{%left, %left, %left, %left}};", STMATRIX),
    ):
        # In the last iteration %left, the stored word, is 1.
        stored = expect_same_word(lambda run: 1, THREADS)
        body = _emit_store_stream(access)
        yield Probe(f"{name} throughput", body, stored, 1, (256, 4096), THREADS, WARPS * REGION, feature)


def _emit_address_chase(load: str, step: int, words: int) -> str:
    """Return PTX in which each lane times a chain of `load`, each from the address loaded last; %word gets its offset.
    Before, `words` words are filled with 32 addresses, `step` bytes apart, again and again.
    """
    word = f"""    shr.u32 %r2, %r0, 2;
    and.b32 %r2, %r2, 31;
    mad.lo.u32 %r2, %r2, {step}, %smem;"""
    chain = "\n".join([f"    {load}"] * CHAIN)
    return f"""{emit_fill(4 * words, 32, word)}    mad.lo.u32 %r10, %lane, {step}, %smem;
{emit_timed(emit_loop(chain))}    sub.u32 %word, %r10, %smem;
"""


def _expect_own_address(step: int) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: each lane of the one warp has its number times `step`."""
    return lambda run: np.tile(step * np.arange(32, dtype=np.uint32), (run.blocks, 1))


_SELECT_HALF = f"""    and.b32 %r8, %left, 1;
    mad.lo.u32 %r9, %r8, {ACCESSES * ACCESS_BYTES}, %r7;"""
"""Computes the warp's half in this iteration, and the lane's 16 bytes in its first access."""


_MINE = f"""    mad.lo.u32 %r7, %warp, {REGION}, %smem;
    mad.lo.u32 %r7, %lane, 16, %r7;
"""


def _emit_load_stream(access: str) -> str:
    """Return PTX that fills shared memory with ones, times loads by format `access` (places v, at) and adds them in
    %word.
    """
    lines = [_SELECT_HALF]
    for number in range(ACCESSES):
        v = [f"%r{12 + 4 * (number % 4) + i}" for i in range(4)]
        lines.append("    " + access.format(v=", ".join(v), at=f"%r9+{number * ACCESS_BYTES}"))
        lines += [f"    add.u32 %word, %word, {register};" for register in v]
    return emit_fill(WARPS * REGION, THREADS, "    mov.u32 %r2, 1;") + _MINE + emit_timed(emit_loop("\n".join(lines)))


def _emit_store_stream(access: str) -> str:
    """Return PTX that times stores of %left, the iterations left, by format `access` (place at), and reads the last
    word back.
    """
    lines = [_SELECT_HALF]
    lines += ["    " + access.format(at=f"%r9+{number * ACCESS_BYTES}") for number in range(ACCESSES)]
    last = ACCESSES * ACCESS_BYTES + (ACCESSES - 1) * ACCESS_BYTES
    return f"""{_MINE}    bar.sync 0;
{emit_timed(emit_loop(chr(10).join(lines)))}    bar.sync 0;
    ld.shared.b32 %word, [%r7+{last}];
"""
