"""Warpgroup matrix instructions (wgmma).

An issued wgmma owns its registers and its operands in shared memory until `wgmma.wait_group` retires it. Without an
adversary it computes only then.

Addition in the tensor cores of an H200, bit for bit.

A product of matrices is added one instruction's depth (k) at a time. All k products of an element and the previous sum
are aligned to the largest exponent among them, where a product's exponent is the sum of its factors'. Each is truncated
a fixed number of bits below that exponent, and their exact sum is truncated to the bits that the result keeps. Measured
on an H200 with random inputs of several ranges: see `tests/emu/test_silicon_sums.py`, whose records of the GPU this
reproduces in every bit. For wgmma of any type, and mma.sync of 16 bits and tf32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import RegisterIndex
from tilec.emu.numbers import FORMAT_DECODERS, Array
from tilec.emu.scalar.semantics import read_predicate
from tilec.emu.tma.asyncops import AsyncEffect, AsyncState, RegisterOwner
from tilec.emu.warp.matrix import list_registers
from tilec.emu.warp.sparse import SparseSelection, decode_selection, expand_sparse
from tilec.emu.wgmma.descriptors import decode_warpgroup_descriptor, find_matrix_rows, require_matching_swizzle
from tilec.ptx.module import Operand, Vector
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


_ZERO_EXPONENT = -(1 << 14)
"""The exponent of 0: below all others."""


@dataclass(frozen=True, slots=True)
class Adder:
    """Bits that an addend keeps below the largest one's leading bit, and that the sum keeps below its own."""

    aligned: int
    kept: int


EIGHT_BITS = Adder(13, 13)
SIXTEEN_BITS = Adder(25, 23)
"""The adder of tf32 too."""


def add_product(total: Array, a: Array, b: Array, adder: Adder) -> Array:
    """Return `total` [m, n] plus the product of `a` [m, k] and `b` [n, k], truncated as the tensor cores do, as
    float64.

    Where one is not finite, the sum is the exact one's.
    """
    a, b, total = (np.asarray(x, np.float64) for x in (a, b, total))
    with np.errstate(all="ignore"):
        products = a[:, None, :] * b[None, :, :]
        exponents = _leading_exponent(a)[:, None, :] + _leading_exponent(b)[None, :, :]
        exponents = np.where(products == 0, _ZERO_EXPONENT, exponents)
        largest = np.maximum(exponents.max(axis=-1), _leading_exponent(total))
        step = adder.aligned - np.where(largest == _ZERO_EXPONENT, 0, largest)
        whole = np.trunc(np.ldexp(products, step[..., None])).sum(axis=-1) + np.trunc(np.ldexp(total, step))
        exact = np.ldexp(whole, -step)
        step = adder.kept - np.where(exact == 0, 0, _leading_exponent(exact))
        cut = np.ldexp(np.trunc(np.ldexp(exact, step)), -step)
        return np.where(np.isfinite(cut), cut, a @ b.T + total)


def _leading_exponent(values: Array) -> Array:
    """Return the exponent of each number's leading bit; for 0 one below all others."""
    return np.where(values == 0, _ZERO_EXPONENT, np.frexp(values)[1] - 1)


_THREADS = 128
ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}


@lru_cache(maxsize=4096)
def find_descriptor_rows(bits: int, extent: int, k: int, element_bytes: int, is_mn_major: bool) -> Array:
    """Return the 16-byte rows of shared memory that the operand of a wgmma descriptor takes (see
    `find_matrix_rows`)."""
    return find_matrix_rows(decode_warpgroup_descriptor(bits), extent, k, element_bytes, is_mn_major)


@dataclass(slots=True, eq=False)
class IssuedWgmma(RegisterOwner):
    """A wgmma of one warpgroup that is issued and not retired."""

    line: int
    step: int
    shape: WgmmaShape
    accumulators: frozenset[RegisterIndex]
    inputs: frozenset[RegisterIndex]
    accumulator_places: tuple[RegisterIndex, ...]
    a_places: tuple[RegisterIndex, ...]
    a_rows: Array | None
    b_rows: Array
    keeps: bool
    selection: SparseSelection | None
    ends: tuple[Callable[[], None], ...]
    is_done: bool = False

    @property
    def rows(self) -> list[Array]:
        """Return the rows of shared memory that the wgmma reads, an array for each operand that lies there."""
        return [rows.reshape(-1) for rows in (self.a_rows, self.b_rows) if rows is not None]


@dataclass(frozen=True, slots=True)
class WgmmaShape:
    """The product of a wgmma, from its opcode and immediates."""

    n: int
    k: int
    stored: int
    """The columns of A that exist: half of k where A is sparse."""
    result: str
    a_kind: str
    b_kind: str
    sign: int
    a_is_mn_major: bool
    b_is_mn_major: bool
    saturates: bool


def _list_warpgroups(cta: Cta, threads: Threads) -> list[int]:
    """Return the numbers of the warpgroups that run an instruction; fault unless they are whole."""
    members = cta.thread_ids[threads]
    numbers = members // _THREADS
    if len(members) % _THREADS or (numbers != numbers[::_THREADS].repeat(_THREADS)).any():
        message = f"wgmma is run by {len(members)} threads, which are not whole warpgroups"
        raise Fault("divergent-warpgroup", f"{message}: all 128 threads must run it together")
    return [int(first) // _THREADS for first in members[::_THREADS]]


# -- fence, commit, wait -----------------------------------------------------------------------------------------------


@register_decoder("wgmma.fence")
def _decode_fence(form: Form) -> None:
    """Decode `wgmma.fence` into a step that orders earlier writes to each warpgroup's wgmma registers."""
    form.step.gather = _THREADS

    @form.set_run
    def run_fence(cta: Cta, threads: Threads) -> None:
        """Forget the ordinary writes to wgmma registers of these warpgroups, which the fence orders."""
        for warpgroup in _list_warpgroups(cta, threads):
            cta.asynchronous.unfenced_registers[warpgroup] = set()


@register_decoder("wgmma.commit_group")
def _decode_commit(form: Form) -> None:
    """Decode `wgmma.commit_group` into a step that closes each warpgroup's group of wgmma."""
    form.step.gather = _THREADS

    @form.set_run
    def run_commit(cta: Cta, threads: Threads) -> None:
        """Move each warpgroup's open wgmma to a new committed group."""
        for warpgroup in _list_warpgroups(cta, threads):
            cta.asynchronous.matrix[warpgroup].commit()


@register_decoder("wgmma.wait_group")
def _decode_wait(form: Form) -> None:
    """Decode `wgmma.wait_group` into a step that retires all but the latest groups of each warpgroup's wgmma."""
    form.step.gather = _THREADS
    left = form.parse_constant(form.operands[0])

    @form.set_run
    def run_wait(cta: Cta, threads: Threads) -> None:
        """Retire each warpgroup's committed wgmma, except those of the latest groups that may stay in flight."""
        for warpgroup in _list_warpgroups(cta, threads):
            pending = cta.asynchronous.matrix[warpgroup]
            due = pending.list_due(left)
            issues = [issue for batch in due for issue in batch]
            pending.committed = pending.committed[len(due) :]
            if issues:
                _retire_issues(cta, warpgroup, issues)


# -- mma_async ---------------------------------------------------------------------------------------------------------


def _parse_shape(form: Form) -> WgmmaShape:
    """Return the product that a wgmma's opcode and immediates ask for; fault on a shape or type that it lacks."""
    match = form.match(r"m64n(\d+)k(\d+)")
    kinds = form.find_modifiers(*ELEMENT_BITS, "f32", "s32")
    is_sparse = form.stem == "wgmma.mma_async.sp"
    if match is None or len(kinds) != 3:
        raise form.unsupported("this shape or type")
    n, k = int(match[1]), int(match[2])
    result, a_kind, b_kind = kinds
    stored = k // 2 if is_sparse else k
    if a_kind not in ELEMENT_BITS or b_kind not in ELEMENT_BITS or stored * ELEMENT_BITS[a_kind] != 256:
        raise form.unsupported(f"k = {k} of {a_kind}")
    is_integer = a_kind in ("s8", "u8", "b1")
    mixes = (("s8", "u8"), ("e4m3", "e5m2"))
    if a_kind != b_kind and not any(a_kind in mix and b_kind in mix for mix in mixes):
        raise form.unsupported("this combination of types")
    if (a_kind == "b1") != (form.find_modifier("and") == "and") or (a_kind == "b1" and is_sparse):
        raise form.unsupported("this operation on bits")
    legal_n = n % 8 == 0 and 8 <= n <= 256 and (not is_integer or n in (8, 24) or n % 16 == 0)
    if not legal_n or (result == "s32") != is_integer or (result == "f16" and a_kind in ("bf16", "tf32")):
        raise form.unsupported("this shape or type")
    sign, a_major, b_major = 1, False, False
    if not is_integer:
        rest = form.operands[6 if is_sparse else 4 :]
        scales = [form.parse_constant(operand) for operand in rest[:2]]
        if len(scales) != 2 or any(scale not in (1, -1) for scale in scales):
            raise form.unsupported("scales of A and B other than 1 and -1")
        sign = scales[0] * scales[1]
        majors = [form.parse_constant(operand) for operand in rest[2:]]
        has_registers = isinstance(form.operands[1], Vector)
        wanted = 0 if a_kind not in ("f16", "bf16") else 1 if has_registers else 2
        if len(majors) != wanted:
            raise form.unsupported(f"{len(majors)} transposition operands instead of {wanted}")
        b_major = bool(majors and majors[-1])
        a_major = len(majors) == 2 and bool(majors[0])
    elif len(form.operands) != (6 if is_sparse else 4):
        raise form.unsupported("operands after the predicate")
    return WgmmaShape(n, k, stored, result, a_kind, b_kind, sign, a_major, b_major, form.has("satfinite"))


def _find_registers(form: Form, operand: Operand, count: int) -> tuple[RegisterIndex, ...]:
    """Return the registers of a fragment; fault unless there are `count` of 32 bits each."""
    places = tuple(form.find_register(item) for item in list_registers(form, operand, count))
    if any(class_name != "32" for class_name, _ in places):
        raise form.unsupported("registers that are not 32 bits wide")
    return places


def _require_uniform(values: Array, what: str) -> int:
    """Return the value that all threads of a warpgroup have; fault if they differ."""
    if not (values == values[0]).all():
        raise Fault("bad-descriptor", f"{what} differs between the threads of a warpgroup")
    return int(values[0])


@register_decoder("wgmma.mma_async", "wgmma.mma_async.sp", accepts="popc")
def _decode_mma_async(form: Form) -> None:
    """Decode `wgmma.mma_async`, dense or sparse, into a step that issues an asynchronous product for each warpgroup."""
    form.step.gather = _THREADS
    form.step.is_matrix = True
    shape = _parse_shape(form)
    accumulator_places = _find_registers(form, form.operands[0], shape.n // (4 if shape.result == "f16" else 2))
    a_operand = form.operands[1]
    a_places = _find_registers(form, a_operand, 4) if isinstance(a_operand, Vector) else ()
    a_slot = -1 if a_places else form.read(a_operand, "b64")
    b_slot = form.read(form.operands[2], "b64")
    chosen: SparseSelection | None = None
    metadata_places: tuple[RegisterIndex, ...] = ()
    if form.stem == "wgmma.mma_async.sp":
        chosen = decode_selection(form, form.operands[3], form.parse_constant(form.operands[4]), shape.a_kind, shape.k)
        metadata_places = _find_registers(form, form.operands[3], 1)
    keeps_slot, keeps_negated = read_predicate(form, form.operands[3 if chosen is None else 5])
    accumulators, inputs = frozenset(accumulator_places), frozenset((*a_places, *metadata_places))

    def find_operand_rows(
        cta: Cta, slot: int, warpgroup: int, extent: int, kind: str, is_mn_major: bool, what: str
    ) -> Array:
        """Return the 16-byte rows of shared memory of A or B; fault if they are out of bounds, unready or swizzled
        otherwise."""
        own_threads = _slice_warpgroup(warpgroup)
        bits = _require_uniform(cta.views[slot][own_threads], f"the descriptor of {what}")
        k = shape.stored if what == "A" else shape.k
        # Bits are addressed by the byte.
        size = max(ELEMENT_BITS[kind], 8)
        rows = find_descriptor_rows(bits, extent, k * ELEMENT_BITS[kind] // size, size // 8, is_mn_major)
        memory = cta.shared
        if int(rows.max()) >= len(memory.rows):
            raise Fault("out-of-bounds", f"{what} reaches shared address {int(rows.max()) * 16:#x}, past the end")
        memory.require_async_readable(rows, f"{what} of the wgmma")
        require_matching_swizzle(memory, decode_warpgroup_descriptor(bits), rows, what)
        order, detector = cta.order, memory.race_detector
        if order is not None and detector is not None:
            clock = order.clock_of_warpgroup(int(cta.actors[warpgroup * _THREADS]))
            detector.require_known(clock, rows, f"{what} of the wgmma of {_describe_warpgroup(warpgroup)}")
        return rows

    @form.set_run
    def run_mma_async(cta: Cta, threads: Threads) -> None:
        """Issue a wgmma for each warpgroup, which owns its registers and operands; fault on registers owned, or a
        missing fence. It owns them until it is retired."""
        state = cta.asynchronous
        for warpgroup in _list_warpgroups(cta, threads):
            pending = state.matrix[warpgroup]
            for other in pending.list_all():
                _check_overlap(other, accumulator_places, inputs)
            a_rows = None
            if a_slot >= 0:
                a_rows = find_operand_rows(cta, a_slot, warpgroup, 64, shape.a_kind, shape.a_is_mn_major, "A")
            b_rows = find_operand_rows(cta, b_slot, warpgroup, shape.n, shape.b_kind, shape.b_is_mn_major, "B")
            _require_fence(state, warpgroup, accumulators | inputs)
            keeps = bool(cta.views[keeps_slot][warpgroup * _THREADS]) ^ keeps_negated
            operands = [rows for rows in (a_rows, b_rows) if rows is not None]
            what = f"the wgmma of {_describe_warpgroup(warpgroup)}"
            ends = tuple(state.begin_reading(rows, form.line, what) for rows in operands)
            pc, registers = cta.launch.events.pc, (accumulators, inputs, accumulator_places, a_places)
            issue = IssuedWgmma(form.line, pc, shape, *registers, a_rows, b_rows, keeps, chosen, ends)
            pending.open.append(issue)
            state.own_registers(warpgroup, issue)
            cta.launch.effect_scheduler.schedule_effects(AsyncEffect(partial(_advance_to, cta, warpgroup, issue)))


def _slice_warpgroup(warpgroup: int) -> slice:
    """Return a warpgroup's threads as a slice."""
    return slice(warpgroup * _THREADS, (warpgroup + 1) * _THREADS)


def _describe_warpgroup(warpgroup: int) -> str:
    """Return a warpgroup's threads in words, such as `threads 0-127`."""
    return f"threads {warpgroup * _THREADS}-{warpgroup * _THREADS + _THREADS - 1}"


def _require_fence(state: AsyncState, warpgroup: int, places: frozenset[RegisterIndex]) -> None:
    """Fault unless a wgmma.fence follows the last ordinary write to these registers, and the first wgmma follows
    one."""
    stained, owner = state.unfenced_registers.get(warpgroup), _describe_warpgroup(warpgroup)
    if stained is None:
        raise Fault("missing-wgmma-fence", f"the first wgmma of {owner} comes before any wgmma.fence")
    if not stained.isdisjoint(places):
        message = f"registers of the wgmma of {owner} were written after its last wgmma.fence"
        raise Fault("missing-wgmma-fence", message)


def _check_overlap(other: IssuedWgmma, places: tuple[RegisterIndex, ...], inputs: frozenset[RegisterIndex]) -> None:
    """Fault if a wgmma in flight and a new one share registers, unless as inputs of both or as one whole
    accumulator."""
    accumulators = frozenset(places)
    shares = not accumulators.isdisjoint(other.accumulators) and places != other.accumulator_places
    crosses = not inputs.isdisjoint(other.accumulators) or not accumulators.isdisjoint(other.inputs)
    if shares or crosses:
        message = f"registers of the wgmma of PTX line {other.line}, which has not been waited for"
        raise Fault("unarrived-read", f"{message}, are used by another wgmma that does not share the whole accumulator")


# -- the computation ---------------------------------------------------------------------------------------------------


def _retire_issues(cta: Cta, warpgroup: int, issues: list[IssuedWgmma]) -> None:
    """Compute a warpgroup's wgmma as far as they are not, release what they own, and let its threads know of their
    reads."""
    _compute_issues(cta, warpgroup, [issue for issue in issues if not issue.is_done])
    for issue in issues:
        for end in issue.ends:
            end()
    cta.asynchronous.release_registers(issues)
    order, detector = cta.order, cta.shared.race_detector
    if order is None or detector is None:
        return
    first = int(cta.actors[warpgroup * _THREADS])
    engine = order.threads + first // _THREADS
    detector.read_by_engine(engine, np.concatenate([rows for issue in issues for rows in issue.rows]), issues[-1].step)
    order.acquire_engine(slice(first, first + _THREADS), engine)


def _advance_to(cta: Cta, warpgroup: int, last: IssuedWgmma) -> None:
    """Compute the warpgroup's pending wgmma up to and including `last`, if that is still pending."""
    pending = cta.asynchronous.matrix[warpgroup].list_all()
    if last in pending:
        _compute_issues(cta, warpgroup, [issue for issue in pending[: pending.index(last) + 1] if not issue.is_done])


def _compute_issues(cta: Cta, warpgroup: int, issues: list[IssuedWgmma]) -> None:
    """Compute wgmma in order and write their accumulators; one that successive wgmma add to stays a matrix in
    between."""
    held: tuple[RegisterIndex, ...] = ()
    store_total: Callable[[], None] = lambda: None  # noqa: E731
    total: Array = np.zeros(0)
    for issue in issues:
        issue.is_done = True
        shape = issue.shape
        if issue.accumulator_places != held:
            store_total()
            held = issue.accumulator_places
            total = _load_accumulator(cta, warpgroup, held, shape)
        a = _load_a_matrix(cta, warpgroup, issue)
        b = _load_shared_operand(cta, issue.b_rows, shape.b_kind, shape.b_is_mn_major)
        if shape.sign < 0:
            a = -a
        before: Array = total if issue.keeps else np.zeros_like(total)
        if shape.result == "f32" and shape.a_kind in ("e4m3", "e5m2"):
            # The tensor cores drop far more bits than float32, which kernels can observe.
            total = add_product(before, a, b, EIGHT_BITS)
        else:
            total = before + np.matmul(a, b.T)
        if shape.result == "s32" and shape.saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        store_total = partial(_store_accumulator, cta, warpgroup, held, shape, total)
    store_total()


def _load_shared_operand(cta: Cta, rows: Array, kind: str, is_mn_major: bool) -> Array:
    """Return an operand in shared memory as numbers, [row, k], from its 16-byte rows."""
    matrix = _decode_elements(cta.shared.rows[rows].reshape(rows.shape[0], -1), kind)
    return matrix.T if is_mn_major else matrix


def _decode_elements(data: Array, kind: str) -> Array:
    """Return bytes as numbers of an element type, along the last axis; bits become 0 and 1."""
    if kind == "b1":
        return np.unpackbits(data, axis=-1, bitorder="little").astype(np.float64)
    return FORMAT_DECODERS[kind](data.view(np.dtype(f"u{ELEMENT_BITS[kind] // 8}")))


def _load_a_matrix(cta: Cta, warpgroup: int, issue: IssuedWgmma) -> Array:
    """Return A of a wgmma as [row, k], from shared memory or registers; a sparse one has its zeros filled in."""
    shape, chosen = issue.shape, issue.selection
    if issue.a_rows is not None:
        matrix = _load_shared_operand(cta, issue.a_rows, shape.a_kind, shape.a_is_mn_major)
    else:
        data = _load_registers(cta, warpgroup, issue.a_places).view(np.uint8).reshape(4, _THREADS, 4)
        # registers (k half, row half), threads (w, g, t), e  →  [(w, row half, g), (k half, t, e)]
        values = _decode_elements(data, shape.a_kind).reshape(2, 2, 4, 8, 4, -1)
        matrix = values.transpose(2, 1, 3, 0, 4, 5).reshape(64, shape.stored)
    if chosen is None:
        return matrix
    words = cta.views[chosen.slot][_slice_warpgroup(warpgroup)].reshape(4, 8, 4)
    return expand_sparse(matrix.reshape(4, 16, -1), words, chosen).reshape(64, shape.k)


def _load_registers(cta: Cta, warpgroup: int, places: tuple[RegisterIndex, ...]) -> Array:
    """Return the words of one warpgroup's registers, [register, thread]."""
    rows = [row for _, row in places]
    block: Array = np.ascontiguousarray(cta.blocks["32"][rows, _slice_warpgroup(warpgroup)])
    return block


def _load_accumulator(cta: Cta, warpgroup: int, places: tuple[RegisterIndex, ...], shape: WgmmaShape) -> Array:
    """Return a warpgroup's accumulator as numbers, [row, column]: f32, or float64 for integers."""
    block = _load_registers(cta, warpgroup, places)
    groups = shape.n // 8
    if shape.result == "f16":
        # registers (n / 8, row half), threads (w, g, t), e
        halves = block.view(np.float16).astype(np.float32).reshape(groups, 2, 4, 8, 4, 2)
        return halves.transpose(2, 1, 3, 0, 4, 5).reshape(64, shape.n)
    values = block.view(np.float32) if shape.result == "f32" else block.view(np.int32).astype(np.float64)
    # registers (n / 8, row half, e), threads (w, g, t)  →  [(w, row half, g), (n / 8, t, e)]
    return values.reshape(groups, 2, 2, 4, 8, 4).transpose(3, 1, 4, 0, 5, 2).reshape(64, shape.n)


def _store_accumulator(
    cta: Cta, warpgroup: int, places: tuple[RegisterIndex, ...], shape: WgmmaShape, total: Array
) -> None:
    """Write a sum, [row, column], in the result's type to a warpgroup's accumulator registers."""
    groups = shape.n // 8
    if shape.result == "f16":
        halves = total.astype(np.float16).reshape(4, 2, 8, groups, 4, 2).transpose(3, 1, 0, 2, 4, 5)
        block = np.ascontiguousarray(halves).view(np.uint32).reshape(len(places), _THREADS)
    else:
        lanes = total.reshape(4, 2, 8, groups, 4, 2).transpose(3, 1, 5, 0, 2, 4).reshape(len(places), _THREADS)
        typed = lanes.astype(np.float32) if shape.result == "f32" else lanes.astype(np.int64).astype(np.int32)
        block = np.ascontiguousarray(typed).view(np.uint32)
    rows = [row for _, row in places]
    cta.blocks["32"][rows, _slice_warpgroup(warpgroup)] = block
