"""Probes of the tensor cores: mma.sync, and wgmma with its A in shared memory or in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tilec.calibrate.probe import (
    Array,
    Probe,
    Run,
    emit_fill,
    emit_loop,
    emit_timed,
    emit_timed_twice,
    expect_same_word,
)
from tilec.support.records import dataclass

WARPGROUP = 128
A_BYTES = 64 * 128
WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256)
"""The N of products, where it is measured for bfloat16; `WIDE` for the other types."""
WIDE = (64, 128, 256)
WIDTHS_RS = (8, 16, 32, 64, 96, 128)
"""With A in registers: wider accumulators and sixteen operands A in flight need more registers than exist."""
IN_FLIGHT = 8
"""Products of an iteration: twice the four steps of 32 bytes in a row of 128 bytes."""
FEW, MANY = 1, 5
"""Products issued in a row before a wait: the difference is what one more costs the issuing warps."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A type of operand: the spelling of a product of m64 by `k`, the word that holds ones, and wgmma's operands behind
    the predicate: signs, and for 16 bits the transpositions of shared operands."""

    name: str
    spelling: str
    k: int
    ones: int
    signs: str = ", 1, 1"
    transposes: bool = False
    accumulator: str = "f32"
    most: int = 1 << 24
    """The bound on a sum of ones: eight-bit products are added with 13 bits behind the leading one of the largest."""


OPERANDS = (
    Operand("bf16", "f32.bf16.bf16", 16, 0x3F803F80, transposes=True),
    Operand("f16", "f32.f16.f16", 16, 0x3C003C00, transposes=True),
    Operand("tf32", "f32.tf32.tf32", 8, 0x3F800000),
    Operand("e4m3", "f32.e4m3.e4m3", 32, 0x38383838, most=1 << 14),
    Operand("s8", "s32.s8.s8", 32, 0x01010101, signs="", accumulator="b32"),
)
BF16 = OPERANDS[0]


def build_tensor_probes() -> Iterator[Probe]:
    """Yield the probes of mma.sync and wgmma, and of the clock under their load."""
    yield from _build_mma_probes()
    for operand in OPERANDS:
        for n in WIDTHS if operand is BF16 else WIDE:
            yield _build_wgmma_probe(
                f"wgmma.ss {operand.name} n{n}", operand, n, _emit_product_chain(operand, n), IN_FLIGHT
            )
    for n in WIDTHS_RS:
        yield _build_wgmma_probe(
            f"wgmma.rs bf16 n{n}", BF16, n, _emit_product_chain(BF16, n, in_registers=True), IN_FLIGHT
        )
    for form in ("ss", "rs"):
        alone = _emit_product_chain(BF16, 128, count=1, left=0, in_registers=form == "rs")
        yield _build_wgmma_probe(f"wgmma.{form} alone n128", BF16, 128, alone, 1)
    for count in (FEW, MANY):
        yield _build_wgmma_probe(f"wgmma issue {count}", BF16, 128, _issue_loop(count), 1, count)
    yield _build_loaded_clock_probe()


# ---- mma.sync --------------------------------------------------------------------------------------------------------

MMA_SUMS, MMA_ROUNDS = 8, 4


def _build_mma_probes() -> Iterator[Probe]:
    """Yield a throughput and a latency probe of mma.sync for each of bf16, f16 and s8."""
    each = MMA_SUMS * MMA_ROUNDS
    for operand in OPERANDS:
        if operand.name not in ("bf16", "f16", "s8"):
            continue
        many, one = _expect_mma_total(operand, MMA_SUMS, MMA_ROUNDS, WARPGROUP), _expect_mma_total(operand, 1, each, 32)
        name = f"mma.sync {operand.name}"
        yield Probe(f"{name} throughput", _emit_mma_chain(operand, MMA_SUMS, MMA_ROUNDS), many, each, threads=WARPGROUP,
                    registers=_declare_accumulators(operand, 4 * MMA_SUMS), features=("mma.sync",))  # fmt: skip
        yield Probe(f"{name} latency", _emit_mma_chain(operand, 1, each), one, each,
                    registers=_declare_accumulators(operand, 4 * MMA_SUMS), features=("mma.sync",))  # fmt: skip


def _declare_accumulators(operand: Operand, count: int) -> tuple[str, ...]:
    """Return the declaration of `count` accumulator registers %sum0, … of the operand's type."""
    return (f".{operand.accumulator} %sum<{count}>",)


def _emit_clear_accumulators(operand: Operand, count: int) -> str:
    """Return PTX that sets `count` accumulators %sum0, … to zero."""
    zero = "0f00000000" if operand.accumulator == "f32" else "0"
    return "".join(f"    mov.{operand.accumulator} %sum{i}, {zero};\n" for i in range(count))


def _expect_mma_total(operand: Operand, sums: int, rounds: int, threads: int) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: the total of sums, from 0, 1, … on, of products of ones."""
    each = operand.k * rounds
    dtype = np.float32 if operand.accumulator == "f32" else np.int32
    return expect_same_word(lambda run: sums * (sums - 1) // 2 + sums * each * run.trip_count, threads, dtype)


def _emit_mma_chain(operand: Operand, sums: int, rounds: int) -> str:
    """Return PTX that times a loop of `rounds` mma.sync of ones into each of `sums` accumulators; %word gets their
    total.

    They start differently, so that the assembler merges none.
    """
    d, a, b = operand.spelling.split(".")
    line = []
    for _ in range(rounds):
        for tile in range(sums):
            own = "{" + ", ".join(f"%sum{4 * tile + i}" for i in range(4)) + "}"
            line.append(
                f"    mma.sync.aligned.m16n8k{operand.k}.row.col.{d}.{a}.{b}.{d} {own}, {{%r4, %r5, %r6, %r7}}, "
                f"{{%r8, %r9}}, {own};"
            )
    ones = "".join(f"    mov.b32 %r{i}, {operand.ones};\n" for i in range(4, 10))
    kind, begins = operand.accumulator, operand.accumulator.replace("b32", "u32")
    distinct = "".join(
        f"    mov.u32 %r10, {tile};\n    {'cvt.rn.f32' if kind == 'f32' else 'mov'}.u32 %sum{4 * tile}, %r10;\n"
        for tile in range(sums)
    )
    total = "".join(f"    add.{begins} %sum0, %sum0, %sum{4 * tile};\n" for tile in range(1, sums))
    return f"""{ones}{_emit_clear_accumulators(operand, 4 * sums)}{distinct}    bar.sync 0;
{emit_timed(emit_loop(chr(10).join(line)))}{total}    mov.b32 %word, %sum0;
"""


# ---- wgmma -----------------------------------------------------------------------------------------------------------


def _build_wgmma_probe(name: str, operand: Operand, n: int, chain: str, operations: int, count: int = 0) -> Probe:
    """Return a probe of wgmma on ones that fills operands and runs `chain`; the word is their sum, at most
    `operand.most`.

    `count` is the number of products an iteration, where it is not `operations`.
    """
    each = operand.k * (count or operations)
    dtype = np.float32 if operand.accumulator == "f32" else np.int32
    size = A_BYTES + 128 * n
    ones = emit_fill(size, WARPGROUP, f"    mov.b32 %r2, {operand.ones};", is_async=True)
    body = f"{ones}{_emit_operand_setup(operand, n)}{chain}\n    mov.b32 %word, %sum0;\n"
    registers = (*_declare_accumulators(operand, n // 2), ".b64 %da<4>, %db<4>")
    return Probe(
        name, body, expect_same_word(lambda run: min(each * run.trip_count, operand.most), WARPGROUP, dtype),
        operations, (16, 144), WARPGROUP, size, ("wgmma",), registers=registers,
    )  # fmt: skip


def _emit_operand_setup(operand: Operand, n: int) -> str:
    """Return PTX that sets descriptors of A and B, A in registers %r4 to %r7, and accumulators of zero.

    The descriptors are for four steps along a row: 128-byte swizzle, 1024 bytes between groups of eight rows.
    """
    text = """    shr.u32 %r10, %smem, 4;
    cvt.u64.u32 %rd0, %r10;
    or.b64 %rd0, %rd0, 0x4000004000010000;
"""
    for step in range(4):
        text += f"    add.u64 %da{step}, %rd0, {2 * step};\n    add.u64 %db{step}, %rd0, {A_BYTES // 16 + 2 * step};\n"
    text += "".join(f"    mov.b32 %r{i}, {operand.ones};\n" for i in range(4, 8))
    return text + _emit_clear_accumulators(operand, n // 2)


def _emit_product(operand: Operand, n: int, step: int, in_registers: bool, keeps: str = "1") -> str:
    """Return the text of one wgmma instruction; `keeps` (1 or a predicate) says if it adds to the accumulators. B, and
    A unless `in_registers`, have the descriptors number `step`.
    """
    sums = ", ".join(f"%sum{i}" for i in range(n // 2))
    a = "{%r4, %r5, %r6, %r7}" if in_registers else f"%da{step}"
    transposed = (", 0" if in_registers else ", 0, 0") if operand.transposes else ""
    return (
        f"    wgmma.mma_async.sync.aligned.m64n{n}k{operand.k}.{operand.spelling} {{{sums}}}, {a}, %db{step}, "
        f"{keeps}{operand.signs}{transposed};"
    )


def _emit_product_chain(
    operand: Operand, n: int, count: int = IN_FLIGHT, left: int = 1, in_registers: bool = False
) -> str:
    """Return PTX that times a loop of wgmma groups of `count` products into the same sums, with `left` groups in
    flight. A is in registers %r4 to %r7 if `in_registers`, else in shared memory."""
    products = "\n".join(_emit_product(operand, n, step % 4, in_registers) for step in range(count))
    body = f"""    wgmma.fence.sync.aligned;
{products}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned {left};"""
    return emit_timed(emit_loop(body) + "    wgmma.wait_group.sync.aligned 0;\n")


def _issue_loop(count: int) -> str:
    """Return a loop that adds up in %t0 the issue cycles of `count` products to idle tensor cores, without the wait."""
    products = "\n".join(_emit_product(BF16, 128, step % 4, in_registers=False) for step in range(count))
    return emit_loop(f"""    wgmma.fence.sync.aligned;
    mov.u64 %begin, %clock64;
{products}
    wgmma.commit_group.sync.aligned;
    mov.u64 %end, %clock64;
    wgmma.wait_group.sync.aligned 0;
    sub.u64 %end, %end, %begin;
    add.u64 %t0, %t0, %end;""")


# ---- the clock under load --------------------------------------------------------------------------------------------

_FACTOR, _ADDEND, _MASK, _EXPONENT = 2654435761, 12345, 0x807F807F, 0x3F003F00
_WIDE = 256


def _build_loaded_clock_probe() -> Probe:
    """Return the probe of the clock under load: products of pseudo-random numbers on every multiprocessor.

    Zeros leave the clock higher. Each iteration clears its accumulators, to limit rounding errors, by a predicate that
    is false: if the assembler knew this, it would drop the products of an unrolled iteration whose accumulators the
    next one clears.
    """
    word = f"""    mad.lo.u32 %r2, %r0, {_FACTOR}, {_ADDEND};
    shr.u32 %r3, %r2, 9;
    xor.b32 %r2, %r2, %r3;
    and.b32 %r2, %r2, {_MASK};
    or.b32 %r2, %r2, {_EXPONENT};"""
    size = A_BYTES + 128 * _WIDE
    keeps = ["%p1", *["1"] * (IN_FLIGHT - 1)]
    products = "\n".join(_emit_product(BF16, _WIDE, step % 4, False, kept) for step, kept in enumerate(keeps))
    never = "    ld.param.u32 %r2, [trips];\n    setp.eq.u32 %p1, %r2, 0;\n"
    chain = emit_loop(f"""    wgmma.fence.sync.aligned;
{products}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 1;""")
    timing = emit_timed_twice(chain + "    wgmma.wait_group.sync.aligned 0;\n")
    before = f"{emit_fill(size, WARPGROUP, word, is_async=True)}{_emit_operand_setup(BF16, _WIDE)}{never}"
    body = f"{before}{timing}    mov.b32 %word, %sum0;\n"
    registers = (*_declare_accumulators(BF16, _WIDE // 2), ".b64 %da<4>, %db<4>")
    return Probe(
        "clock under load", body, _compute_expected_products, 1, (2000, 62000), WARPGROUP, size, ("wgmma",),
        ("cycles", "ns"), fills_chip=True, registers=registers, tolerance=1e-3,
    )  # fmt: skip


def _compute_expected_products(run: Run) -> Array:
    """Return each thread's first accumulator of the clock probe, computed by numpy from the pseudo-random operands.

    It is that of row lane / 4 of the warp's sixteen, column 2 (lane mod 4).
    """
    offset = np.arange(0, A_BYTES + 128 * _WIDE, 4, dtype=np.uint64)
    word = (offset * _FACTOR + _ADDEND) & 0xFFFFFFFF
    word = (((word ^ word >> 9) & _MASK) | _EXPONENT).astype(np.uint32)
    halves = word.view(np.uint16).astype(np.uint32) << 16
    rows = halves.view(np.float32).astype(np.float64).reshape(-1, 8, 8)
    # Swizzled by 128 bytes: chunk c of row r lies at c ^ (r mod 8).
    index = np.arange(8)[None, :] ^ (np.arange(len(rows)) % 8)[:, None]
    matrix = np.take_along_axis(rows, index[:, :, None], axis=1).reshape(len(rows), 64)
    thread = np.arange(WARPGROUP)
    a, b = matrix[:64], matrix[64:]
    sums = (a[16 * (thread // 32) + thread % 32 // 4] * b[2 * (thread % 4)]).sum(axis=1)
    return np.tile((sums * IN_FLIGHT / 4).astype(np.float32), (run.blocks, 1))
