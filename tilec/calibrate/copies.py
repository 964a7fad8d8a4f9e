"""Probes of memory: the tensor memory accelerator, cp.async, plain loads, and the whole chip at once.

Latencies are taken twice over the same rows. The first time the rows come from DRAM: clearing so much memory has
evicted them from L2 long since. The second time they come from L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tilec.calibrate.probe import (
    ROW_BYTES,
    Array,
    Probe,
    Run,
    emit_barriers,
    emit_fill,
    emit_loop,
    emit_timed,
    emit_timed_twice,
    emit_wait,
)
from tilec.target.names import Feature

ROWS = 1 << 23
"""The rows of memory: 1 GiB."""
BOXES = (8, 32, 128, 256)
"""Rows of a box, which has 128 bytes a row: 1 to 32 KiB."""
SMALL, LARGE = 8, 128
"""Rows of a box where throughput is measured."""
SLOTS = 8
"""Boxes in flight."""
L2_WINDOW, SM_WINDOW = 1 << 18, 1 << 13
"""Rows that loads from L2 cycle through: all blocks in 32 MiB, one alone in 1 MiB."""
WORDS = ROW_BYTES // 4
FILLED = 0x3F803F80
COPY_THREADS = 1024
COPY_BYTES = COPY_THREADS * 4 * 16
"""The bytes that a block copies in an iteration."""


def build_copy_probes() -> Iterator[Probe]:
    """Yield the probes of tensor copies, cp.async, plain loads, and copies by the whole chip."""
    tma: tuple[Feature, ...] = ("tma", "mbarrier")
    for box in BOXES:
        yield Probe(
            f"tma.load {box * ROW_BYTES} bytes", _emit_load_latency(box), _expect_last_box(box), 1, (32, 256), 32,
            box * ROW_BYTES, tma, ("from dram", "from l2", "issue"), rows=ROWS, box=box,
        )  # fmt: skip
        yield Probe(
            f"tma.store {box * ROW_BYTES} bytes", _emit_store_latency(box), _build_expected_fill, 1, (32, 256), 32,
            box * ROW_BYTES, tma, ("until read", "until written"), rows=ROWS, box=box,
        )  # fmt: skip
    for box in (SMALL, LARGE):
        size = box * ROW_BYTES
        yield Probe(
            f"tma.load throughput, boxes of {size} bytes", _emit_load_stream(box, SM_WINDOW),
            _expect_stream(box, SM_WINDOW), SLOTS, (64, 512), 32, SLOTS * size, tma, rows=ROWS, box=box,
        )  # fmt: skip
        yield Probe(
            f"tma.store throughput, boxes of {size} bytes", _emit_store_stream(box), _build_expected_fill, SLOTS,
            (64, 512), 32, size, tma, rows=ROWS, box=box,
        )  # fmt: skip
    for name, window, trip_count in (("l2", L2_WINDOW, (16, 256)), ("dram", ROWS, (8, 56))):
        yield Probe(
            f"{name} throughput, all SMs", _emit_load_stream(LARGE, window), _expect_stream(LARGE, window), SLOTS,
            trip_count, 32, SLOTS * LARGE * ROW_BYTES, tma, ("cycles", "ns"), fills_chip=True, rows=ROWS, box=LARGE,
        )  # fmt: skip
    yield Probe(
        "cp.async of 2048 bytes", _emit_cp_async_chain(), _compute_expected_last_copy, 1, (32, 256), 128, 2048,
        ("cp.async",), ("from dram", "from l2"), rows=ROWS,
    )  # fmt: skip
    yield Probe(
        "ld.global latency", _emit_pointer_chase(),
        lambda run: _expect_word_of_thread_0(run, 4 * STEP * run.trip_count), 4, (32, 512),
        readings=("from dram", "from l2"), rows=ROWS,
    )  # fmt: skip
    yield Probe(
        "copy, all SMs", _emit_row_copies(), _compute_expected_copy, 1, (8, 48), COPY_THREADS,
        readings=("cycles", "ns"), fills_chip=True, rows=ROWS,
    )  # fmt: skip


def _read_memory_words(run: Run, index: int | Array) -> Array:
    """Return the words of the run's memory at these indices, and zero beyond its end, as in a copied box."""
    at = np.asarray(index)
    found: Array = np.where(at < len(run.words), run.words[np.minimum(at, len(run.words) - 1)], 0).astype(np.uint32)
    return found


# ---- one box after the other -----------------------------------------------------------------------------------------

_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
_READ_BACK = "    ld.shared.b32 %word, [%smem];\n"


def _emit_load_latency(box: int) -> str:
    """Return PTX in which thread 0 loads boxes one at a time, timed from DRAM, then from L2; %t2 adds up the latter's
    issue.

    It has an even number of iterations, so that the barrier's phase ends as it began.
    """

    def load_boxes(name: str) -> str:
        """Return a loop labelled `name` that loads the next box, adds its issue cycles to %t2, and waits for it."""
        return emit_loop(
            f"""    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bars], {box * ROW_BYTES};
    mov.u64 %rd1, %clock64;
    {_LOAD} [%smem], [%map, {{0, %r5}}], [%bars];
    mov.u64 %rd2, %clock64;
    sub.u64 %rd2, %rd2, %rd1;
    add.u64 %t2, %t2, %rd2;
{emit_wait(0, "%r6", f"{name}_WAIT")}    xor.b32 %r6, %r6, 1;
    add.u32 %r5, %r5, {box};""",
            name,
        )

    return f"""{emit_barriers(1)}    mov.u32 %r6, 0;
    @!%first bra MET;
    mov.u32 %r5, 0;
{emit_timed(load_boxes("FAR"))}    mov.u64 %t2, 0;
    mov.u32 %r5, 0;
{emit_timed(load_boxes("NEAR"), 1)}{_READ_BACK}MET:
"""


def _expect_last_box(box: int) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: thread 0 has the first word of the last box, the others zero."""
    return lambda run: _expect_word_of_thread_0(run, _read_memory_words(run, (run.trip_count - 1) * box * WORDS))


def _expect_word_of_thread_0(run: Run, word: int | Array) -> Array:
    """Return an array of words, 32 for each block, in which thread 0 has `word` and the others zero."""
    found = np.zeros((run.blocks, 32), np.uint32)
    found[:, 0] = word
    return found


def _emit_store_latency(box: int) -> str:
    """Return PTX in which thread 0 stores a filled box row after row, timed until read, then until written."""

    def store_boxes(name: str, until: str) -> str:
        """Return a loop labelled `name` that stores a box and waits: until read, or until written, by the suffix
        `until`.
        """
        return emit_loop(
            f"""    {_STORE} [%map, {{0, %r5}}], [%smem];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group{until} 0;
    add.u32 %r5, %r5, {box};""",
            name,
        )

    return f"""{emit_fill(box * ROW_BYTES, 32, f"    mov.u32 %r2, {FILLED};", is_async=True)}    @!%first bra MET;
    mov.u32 %r5, 0;
{emit_timed(store_boxes("READ", ".read"))}    cp.async.bulk.wait_group 0;
    mov.u32 %r5, 0;
{emit_timed(store_boxes("WRITTEN", ""), 1)}{_emit_read_of_stored_word(box)}MET:
"""


def _emit_read_of_stored_word(box: int) -> str:
    """Return PTX that loads into %word the first word of the box that was stored last, one before row %r5."""
    return f"""    cp.async.bulk.wait_group 0;
    fence.proxy.async.global;
    sub.u32 %r5, %r5, {box};
    mad.wide.u32 %rd3, %r5, {ROW_BYTES}, %memory;
    ld.global.b32 %word, [%rd3];
"""


def _build_expected_fill(run: Run) -> Array:
    """Return a run's expected words: thread 0 of each block has the word FILLED, the others zero."""
    return _expect_word_of_thread_0(run, FILLED)


# ---- boxes in flight -------------------------------------------------------------------------------------------------


def _emit_row_selection(box: int, window: int) -> str:
    """Return PTX that computes in %r5 the first row of this block's box number %r4, and increments %r4.

    Blocks take turns, cyclically in the window.
    """
    return f"""    mad.lo.u32 %r5, %r4, %r7, %block;
    mul.lo.u32 %r5, %r5, {box};
    and.b32 %r5, %r5, {window - 1};
    add.u32 %r4, %r4, 1;
"""


def _emit_box_load(box: int, window: int, slot: int) -> str:
    """Return PTX that loads the block's next box within `window` rows to a ring slot, announced to its mbarrier."""
    size = box * ROW_BYTES
    select_row = _emit_row_selection(box, window)
    return f"""{select_row}    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bars+{8 * slot}], {size};
    add.u32 %r8, %smem, {slot * size};
    {_LOAD} [%r8], [%map, {{0, %r5}}], [%bars+{8 * slot}];
"""


def _emit_load_stream(box: int, window: int) -> str:
    """Return PTX in which thread 0 loads boxes, eight in flight, in a loop timed in cycles and ns, and waits for the
    last.
    """
    first = "".join(_emit_box_load(box, window, slot) for slot in range(SLOTS))
    body = "".join(emit_wait(slot, "%r6", f"WAIT{slot}") + _emit_box_load(box, window, slot) for slot in range(SLOTS))
    last = "".join(emit_wait(slot, "%r6", f"LAST{slot}") for slot in range(SLOTS))
    return f"""{emit_barriers(SLOTS)}    mov.u32 %r6, 0;
    mov.u32 %r4, 0;
    mov.u32 %r7, %nctaid.x;
    @!%first bra MET;
{first}{emit_timed_twice(emit_loop(body + "    xor.b32 %r6, %r6, 1;"))}{last}{_READ_BACK}MET:
"""


def _expect_stream(box: int, window: int) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: thread 0 has the first word of the box that slot 0 got last."""

    def compute_words(run: Run) -> Array:
        """Return, for thread 0 of each block, the first word of the box that slot 0 got last, and zeros."""
        # Slot 0 holds the first box of the last iteration's issues.
        row = (run.trip_count * SLOTS * run.blocks + np.arange(run.blocks)) * box & window - 1
        return _expect_word_of_thread_0(run, _read_memory_words(run, row * WORDS))

    return compute_words


def _emit_store_stream(box: int) -> str:
    """Return PTX that fills a box and times thread 0's stores of it to row after row, at most four in flight."""
    one = f"""{_emit_row_selection(box, SM_WINDOW)}    {_STORE} [%map, {{0, %r5}}], [%smem];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 3;
"""
    return f"""{emit_fill(box * ROW_BYTES, 32, f"    mov.u32 %r2, {FILLED};", is_async=True)}    mov.u32 %r4, 0;
    mov.u32 %r7, %nctaid.x;
    @!%first bra MET;
{emit_timed(emit_loop(one * SLOTS))}    add.u32 %r5, %r5, {box};
{_emit_read_of_stored_word(box)}MET:
"""


# ---- without the accelerator -----------------------------------------------------------------------------------------


def _emit_cp_async_chain() -> str:
    """Return PTX in which 128 threads copy 2048 bytes by cp.async and wait, timed from DRAM and then from L2."""

    def copy_rows(name: str) -> str:
        """Return a loop, with its labels from `name`, that copies 16 bytes a thread by cp.async and waits for them."""
        start = "    mad.wide.u32 %rd3, %thread, 16, %memory;\n"
        body = """    cp.async.cg.shared.global [%r7], [%rd3], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    add.u64 %rd3, %rd3, 2048;"""
        return start + emit_loop(body, name)

    return f"""    mad.lo.u32 %r7, %thread, 16, %smem;
    bar.sync 0;
{emit_timed(copy_rows("FAR"))}    bar.sync 0;
{emit_timed(copy_rows("NEAR"), 1)}    ld.shared.b32 %word, [%r7];
"""


def _compute_expected_last_copy(run: Run) -> Array:
    """Return a run's expected words: each of 128 threads has the first word of its last 16-byte copy."""
    return np.tile(_read_memory_words(run, (run.trip_count - 1) * 512 + 4 * np.arange(128)), (run.blocks, 1))


STEP = 4096 + 128
"""Bytes between links of the chain, so that no two share a line or always the same channel."""


def _emit_pointer_chase() -> str:
    """Return PTX in which thread 0 times dependent global loads from DRAM, then from L2; %word gets the last byte
    offset.
    """

    def follow_chain(name: str, start: str) -> str:
        """Return a loop labelled `name` of four links from byte `start` of memory: load a word, add it and STEP to the
        address.
        """
        link = f"""    ld.global.cg.b32 %r8, [%rd3];
    cvt.u64.u32 %rd4, %r8;
    add.u64 %rd3, %rd3, %rd4;
    add.u64 %rd3, %rd3, {STEP};
"""
        return f"    add.u64 %rd3, %memory, {start};\n" + emit_loop(link * 4, name)

    # The second walk depends on the last word of the first one, so that the assembler keeps both.
    return f"""    @!%first bra MET;
{emit_timed(follow_chain("FAR", "0"))}{emit_timed(follow_chain("NEAR", "%rd4"), 1)}    sub.u64 %rd3, %rd3, %memory;
    cvt.u32.u64 %word, %rd3;
MET:
"""


def _emit_row_copies() -> str:
    """Return PTX that times a loop in which each thread copies 64 bytes from the first half of the rows to the
    second."""
    loads = "".join(
        f"    ld.global.v4.b32 {{%r{8 + 4 * i}, %r{9 + 4 * i}, %r{10 + 4 * i}, %r{11 + 4 * i}}}, "
        f"[%rd3+{16 * COPY_THREADS * i}];\n"
        for i in range(4)
    )
    stores = "".join(
        f"    st.global.v4.b32 [%rd4+{16 * COPY_THREADS * i}], "
        f"{{%r{8 + 4 * i}, %r{9 + 4 * i}, %r{10 + 4 * i}, %r{11 + 4 * i}}};\n"
        for i in range(4)
    )
    further = "    add.u64 %rd3, %rd3, %rd6;\n    add.u64 %rd4, %rd4, %rd6;"
    return f"""    mov.u32 %r7, %nctaid.x;
    mul.wide.u32 %rd6, %r7, {COPY_BYTES};
    mad.wide.u32 %rd3, %block, {COPY_BYTES}, %memory;
    mad.wide.u32 %rd3, %thread, 16, %rd3;
    ld.param.u32 %r6, [rows];
    mad.wide.u32 %rd4, %r6, {ROW_BYTES // 2}, %rd3;
    bar.sync 0;
{emit_timed_twice(emit_loop(loads + stores + further))}    sub.u64 %rd4, %rd4, %rd6;
    ld.global.b32 %word, [%rd4];
"""


def _compute_expected_copy(run: Run) -> Array:
    """Return a run's expected words: the first word that each thread copied in the last iteration."""
    place = ((run.trip_count - 1) * run.blocks + np.arange(run.blocks)) * (COPY_BYTES // 4)
    return _read_memory_words(run, place[:, None] + 4 * np.arange(COPY_THREADS))
