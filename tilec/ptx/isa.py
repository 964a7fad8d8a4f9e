"""The instruction table: a row per form, with its operands and the lowest target and PTX version that support it.

A row is found by the longest run of leading parts: `cp.async.bulk.commit_group` before `cp.async`. The rows catch
early, in our words, what the assembler would report; the assembler remains the judge of the rest.
"""

from __future__ import annotations

import re
from functools import cache

from tilec.ptx import module as ptx
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirements of a modifier beyond its row's. `modifier` is matched against the dot-separated parts of the
    opcode."""

    modifier: str
    sm: int = 0
    ptx: tuple[int, int] = (0, 0)
    needs_arch_specific: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One form. `operands` is one letter per operand, `?` after those that may be left out:

    d destination register, D destination register or pair, v register or vector, w the same or a constant, s source
    (register, constant or symbol), x source, vector or negated predicate, p predicate source, m address, t tensor
    address, y source or vector, a source or address (a descriptor or a place in tensor memory), o what may follow the
    operands of a tcgen05.mma, l label, i integer, c a part of a call: function, register or list in parentheses.
    """

    stem: str
    operands: str
    sm: int = 0
    ptx: tuple[int, int] = (1, 0)
    needs_arch_specific: bool = False
    requirements: tuple[Requirement, ...] = ()


_KINDS: dict[str, tuple[type, ...]] = {
    "d": (ptx.Reg,),
    "D": (ptx.Reg, ptx.Pair),
    "v": (ptx.Reg, ptx.Vector),
    "w": (ptx.Reg, ptx.Vector, ptx.Imm, ptx.FloatImm),
    "s": (ptx.Reg, ptx.Imm, ptx.FloatImm, ptx.Symbol),
    "y": (ptx.Reg, ptx.Imm, ptx.Symbol, ptx.Vector),
    "x": (ptx.Reg, ptx.Imm, ptx.FloatImm, ptx.Symbol, ptx.Vector, ptx.NotPred),
    "p": (ptx.Reg, ptx.NotPred, ptx.Imm),
    "m": (ptx.Address,),
    "t": (ptx.TensorAddress,),
    "a": (ptx.Reg, ptx.Imm, ptx.Address),
    "o": (ptx.Reg, ptx.NotPred, ptx.Imm, ptx.Address, ptx.Vector),
    "l": (ptx.Symbol,),
    "i": (ptx.Imm,),
    "c": (ptx.Arguments, ptx.Symbol, ptx.Reg),
}
_WORDS = {
    "d": "a destination register",
    "D": "a destination register or pair",
    "v": "a register or vector",
    "w": "a register, vector or constant",
    "s": "a register or constant",
    "y": "a register, constant or vector",
    "x": "a source",
    "p": "a predicate",
    "m": "an address",
    "t": "a tensor address",
    "a": "a register or address",
    "o": "a register, constant, address or vector",
    "l": "a label",
    "i": "an integer",
    "c": "a function or a list in parentheses",
}

# Modifiers that are newer than their instructions.
_BF16 = (Requirement("bf16", 80, (7, 0)), Requirement("bf16x2", 80, (7, 0)))
_BF16_ARITHMETIC = (Requirement("bf16", 90, (7, 8)), Requirement("bf16x2", 90, (7, 8)))
_PAIRS_OF_F32 = Requirement("f32x2", 100, (8, 6))
_HALF_ORDER = (Requirement("f16", 80, (7, 0)), Requirement("f16x2", 80, (7, 0)), *_BF16)
_FP8 = (Requirement("e4m3", 89, (8, 4)), Requirement("e5m2", 89, (8, 4)))
_BYTE_MATRICES = tuple(
    Requirement(shape, 100, (8, 6), needs_arch_specific=True) for shape in ("m16n16", "m8n16", "m16n8")
)
_MMA = (
    *(*_BF16, *_FP8),
    *(Requirement(f"kind::{kind}", 120, (8, 7), needs_arch_specific=True) for kind in ("f8f6f4", "mxf8f6f4")),
    *(Requirement(f"kind::{kind}", 120, (8, 7), needs_arch_specific=True) for kind in ("mxf4", "mxf4nvf4")),
)
_FP8_CONVERSIONS = (Requirement("e4m3x2", 89, (8, 1)), Requirement("e5m2x2", 89, (8, 1)))
_TANH_EX2_HALF = (
    Requirement("f16", 75, (7, 0)),
    Requirement("f16x2", 75, (7, 0)),
    Requirement("bf16", 90, (7, 8)),
    Requirement("bf16x2", 90, (7, 8)),
)
_CLUSTER_SCOPE = (Requirement("cluster", 90, (7, 8)), Requirement("shared::cluster", 90, (7, 8)))
_SHARED_CTA = (Requirement("shared::cta", 30, (7, 8)),)


_SIMD = "vadd vsub vavrg vabsdiff vmin vmax"


def _build_rows() -> tuple[Row, ...]:
    def make_rows(stems: str, operands: str, *requirements: Requirement) -> list[Row]:
        return [Row(stem, operands, requirements=requirements) for stem in stems.split()]

    return (
        # Arithmetic and logic.
        *make_rows("add sub", "dss", *_BF16_ARITHMETIC, _PAIRS_OF_F32),
        *make_rows("mul", "dss", *_BF16_ARITHMETIC, _PAIRS_OF_F32),
        *make_rows("add.cc addc sub.cc subc", "dss"),
        *make_rows("mad.lo.cc mad.hi.cc madc mad24", "dsss"),
        *make_rows("mul24", "dss"),
        *make_rows("div rem and or xor shl shr", "dss"),
        *make_rows("min max", "dsss?", *_HALF_ORDER),
        *make_rows("abs neg", "ds", *_BF16),
        *make_rows("not popc clz brev cnot", "ds"),
        *make_rows("mad sad", "dsss"),
        *make_rows("fma", "dsss", *_BF16, _PAIRS_OF_F32),
        *make_rows("rcp sqrt rsqrt lg2 sin cos", "ds"),
        *make_rows("ex2", "ds", *_TANH_EX2_HALF),
        Row("tanh", "ds", 75, (7, 0), requirements=_TANH_EX2_HALF),
        *make_rows("copysign", "dss"),
        *make_rows("prmt bfe", "dsss"),
        *make_rows("bfi", "dssss"),
        *make_rows("bfind", "ds"),
        *make_rows("shf", "dsss"),
        *make_rows("lop3", "Dsssip?"),
        *make_rows("selp", "dssp"),
        *make_rows("setp", "Dssp?", *_BF16_ARITHMETIC),
        *make_rows("set", "dssp?"),
        *make_rows("slct", "dsss"),
        *make_rows("testp", "ds"),
        Row("dp4a", "dsss", 61, (5, 0)),
        Row("dp2a", "dsss", 61, (5, 0)),
        Row("szext", "dss", 70, (7, 6)),
        Row("bmsk", "dss", 70, (7, 6)),
        Row("fns", "dsss", 30, (6, 0)),
        *(Row(f"{name}{lanes}", "dsss?", 30, (3, 0)) for name in _SIMD.split() for lanes in (2, 4)),
        # Moves and conversions.
        *make_rows("mov", "vx"),
        *make_rows("cvt", "dss?", *_BF16, *_FP8_CONVERSIONS, Requirement("tf32", 80, (7, 0))),
        Row("cvt.pack", "dsss?", 72, (6, 5)),
        *make_rows("cvta isspacep", "ds"),
        Row("getctarank", "ds", 90, (7, 8)),
        Row("mapa", "dss", 90, (7, 8)),
        # Memory.
        *make_rows("ldu", "vm"),
        *make_rows("ld", "vms?", *_CLUSTER_SCOPE, *_SHARED_CTA),
        *make_rows("st", "mws?", *_CLUSTER_SCOPE, *_SHARED_CTA),
        *make_rows("atom", "vmww?s?", *_CLUSTER_SCOPE, *_SHARED_CTA, *_BF16_ARITHMETIC),
        *make_rows("red", "mws?", *_CLUSTER_SCOPE, *_SHARED_CTA, *_BF16_ARITHMETIC),
        *make_rows("prefetch prefetchu", "m"),
        Row("discard", "mi", 80, (7, 4)),
        Row("applypriority", "mi", 80, (7, 4)),
        *make_rows("pmevent", "i"),
        Row("prefetch.tensormap", "m", 90, (8, 0)),
        Row("prefetch.param.tensormap", "m", 90, (8, 0)),
        Row("createpolicy", "ds?s?s?", 80, (7, 4)),
        Row("createpolicy.fractional", "ds?", 80, (7, 4)),
        Row("createpolicy.range", "dmss", 80, (7, 4)),
        Row("createpolicy.cvt", "ds", 80, (7, 4)),
        # Control.
        *make_rows("bra", "l"),
        *make_rows("brx.idx", "sl"),
        *make_rows("call", "cc?c?c?"),
        *make_rows("ret exit trap brkpt", ""),
        Row("nanosleep", "s", 70, (6, 3)),
        Row("griddepcontrol", "", 90, (7, 8)),
        Row("setmaxnreg", "i", 90, (8, 0), needs_arch_specific=True),
        # Barriers and fences.
        *make_rows("bar.sync bar.cta.sync", "ss?"),
        *make_rows("bar.arrive bar.cta.arrive", "ss"),
        *make_rows("bar.red bar.cta.red", "dsxx?"),
        *(Row(f"barrier{level}.sync", "ss?", 30, (6, 0)) for level in ("", ".cta")),
        *(Row(f"barrier{level}.arrive", "ss", 30, (6, 0)) for level in ("", ".cta")),
        *(Row(f"barrier{level}.red", "dsxx?", 30, (6, 0)) for level in ("", ".cta")),
        Row("barrier.cluster.arrive", "", 90, (7, 8)),
        Row("barrier.cluster.wait", "", 90, (7, 8)),
        Row("bar.warp.sync", "s", 30, (6, 0)),
        *make_rows("membar", ""),
        Row("fence", "", 70, (6, 0), requirements=_CLUSTER_SCOPE),
        Row("fence.proxy.async", "", 90, (8, 0)),
        Row("fence.proxy.async::generic", "", 90, (8, 6)),
        Row("fence.proxy.alias", "", 70, (7, 5)),
        Row("fence.mbarrier_init", "", 90, (8, 0)),
        Row("fence.proxy.tensormap::generic", "m?i?", 90, (8, 3)),
        Row("tensormap.replace", "mss?", 90, (8, 3), needs_arch_specific=True),
        Row("tensormap.cp_fenceproxy", "mmi", 90, (8, 3)),
        # Threads of a warp among themselves.
        Row("shfl.sync", "Dssss", 30, (6, 0)),
        Row("vote.sync", "dps", 30, (6, 0)),
        *make_rows("vote", "dp"),
        Row("match.any.sync", "dss", 70, (6, 0)),
        Row("match.all.sync", "Dss", 70, (6, 0)),
        Row("redux.sync", "dss", 80, (7, 0), requirements=(Requirement("f32", 100, (8, 6), needs_arch_specific=True),)),
        Row("activemask", "d", 30, (6, 2)),
        Row("elect.sync", "Ds", 90, (8, 0)),
        # mbarrier.
        Row("mbarrier.init", "ms", 80, (7, 0), requirements=_SHARED_CTA),
        Row("mbarrier.inval", "m", 80, (7, 0), requirements=_SHARED_CTA),
        Row(
            "mbarrier.arrive",
            "dms?",
            80,
            (7, 0),
            requirements=(Requirement("expect_tx", 90, (8, 0)), *_CLUSTER_SCOPE, *_SHARED_CTA),
        ),
        Row("mbarrier.arrive_drop", "dms?", 80, (7, 0), requirements=(*_CLUSTER_SCOPE, *_SHARED_CTA)),
        Row("mbarrier.pending_count", "ds", 80, (7, 0)),
        Row("mbarrier.expect_tx", "ms", 90, (8, 0)),
        Row("mbarrier.complete_tx", "ms", 90, (8, 0)),
        Row("mbarrier.test_wait", "dms", 80, (7, 0), requirements=(Requirement("parity", 80, (7, 1)), *_SHARED_CTA)),
        Row("mbarrier.try_wait", "dmss?", 90, (7, 8)),
        # Asynchronous copies.
        Row("cp.async", "mmis?s?", 80, (7, 0)),
        Row("cp.async.commit_group", "", 80, (7, 0)),
        Row("cp.async.wait_group", "i", 80, (7, 0)),
        Row("cp.async.wait_all", "", 80, (7, 0)),
        Row("cp.async.mbarrier.arrive", "m", 80, (7, 0)),
        Row("cp.async.bulk.shared::cluster", "mmsms?s?", 90, (8, 0)),
        Row("cp.async.bulk.shared::cta", "mmsms?", 90, (8, 6)),
        Row("cp.async.bulk.global", "mmss?s?", 90, (8, 0), requirements=(Requirement("cp_mask", 100, (8, 6)),)),
        Row("clusterlaunchcontrol.try_cancel", "mm", 100, (8, 6)),
        Row("clusterlaunchcontrol.query_cancel", "vv", 100, (8, 6)),
        Row("cp.async.bulk.commit_group", "", 90, (8, 0)),
        Row("cp.async.bulk.wait_group", "i", 90, (8, 0)),
        Row("cp.async.bulk.prefetch", "ms?s?", 90, (8, 0)),
        Row("cp.reduce.async.bulk", "mmss?", 90, (8, 0)),
        Row("cp.reduce.async.bulk.shared::cluster", "mmsm", 90, (8, 0)),
        Row("st.bulk", "msi", 100, (8, 6)),
        Row("st.async", "mwm", 90, (8, 1)),
        Row("red.async", "msm", 90, (8, 1)),
    )


_PAIR = (Requirement("cta_group::1", 100, (8, 6), True), Requirement("cta_group::2", 100, (8, 6), True))
_TENSOR_RANKS = ("1d", "2d", "3d", "4d", "5d")


def _tensor_rows() -> tuple[Row, ...]:
    rows = []
    for rank in _TENSOR_RANKS:
        rows += [
            Row(f"cp.async.bulk.tensor.{rank}.shared::cluster", "mtmy?s?s?", 90, (8, 0), requirements=_PAIR),
            Row(f"cp.async.bulk.tensor.{rank}.shared::cta", "mtmy?s?", 90, (8, 6), requirements=_PAIR),
            Row(f"cp.async.bulk.tensor.{rank}.global", "tms?", 90, (8, 0)),
            Row(f"cp.reduce.async.bulk.tensor.{rank}.global", "tms?", 90, (8, 0)),
            Row(f"cp.async.bulk.prefetch.tensor.{rank}", "ts?", 90, (8, 0)),
        ]
    return tuple(rows)


def _matrix_rows() -> tuple[Row, ...]:
    return (
        Row("ldmatrix.sync", "vm", 75, (6, 5), requirements=_BYTE_MATRICES),
        Row("stmatrix.sync", "mv", 90, (7, 8), requirements=_BYTE_MATRICES),
        Row("mma.sync", "vvvvs?v?s?v?", 70, (6, 4), requirements=(*_MMA, Requirement("m16n8k16", 80, (7, 0)))),
        Row("mma.sp.sync", "vvvvsis?v?s?v?", 80, (7, 1), requirements=_MMA),
        Row("mma.sp::ordered_metadata.sync", "vvvvsis?v?s?v?", 80, (8, 5), requirements=_MMA),
        Row("movmatrix.sync", "ds", 75, (7, 8)),
        Row("wmma.load", "vms?", 70, (6, 0)),
        Row("wmma.store", "mvs?", 70, (6, 0)),
        Row("wmma.mma", "vvvv", 70, (6, 0)),
        Row("wgmma.fence", "", 90, (8, 0), needs_arch_specific=True),
        Row("wgmma.commit_group", "", 90, (8, 0), needs_arch_specific=True),
        Row("wgmma.wait_group", "i", 90, (8, 0), needs_arch_specific=True),
        Row("wgmma.mma_async", "vvspi?i?i?i?", 90, (8, 0), needs_arch_specific=True),
        Row("wgmma.mma_async.sp", "vvssipi?i?i?i?", 90, (8, 2), needs_arch_specific=True),
    )


_BLOCKS = (Requirement("block16", 100, (8, 8)), Requirement("block32", 100, (8, 8)))
_TENSOR_TARGETS = (100, 101, 103, 110)
"""The chips with tensor memory."""


def _tensor_memory_rows() -> tuple[Row, ...]:
    def make_row(stem: str, operands: str, *requirements: Requirement) -> Row:
        return Row(f"tcgen05.{stem}", operands, 100, (8, 6), needs_arch_specific=True, requirements=requirements)

    return (
        make_row("alloc", "ms"),
        make_row("dealloc", "ss"),
        make_row("relinquish_alloc_permit", ""),
        make_row("ld", "vmi?"),
        make_row("st", "mwv?"),
        make_row("wait::ld", ""),
        make_row("wait::st", ""),
        make_row("cp", "ms"),
        make_row("shift", "m"),
        make_row("mma", "maso?o?o?o?o?o?", *_BLOCKS, Requirement("kind::mxf4nvf4", 100, (8, 7))),
        make_row("mma.ws", "maso?o?o?o?"),
        make_row("commit", "ms?"),
        make_row("fence::before_thread_sync", ""),
        make_row("fence::after_thread_sync", ""),
    )


ROWS: dict[str, Row] = {
    row.stem: row for row in (*_build_rows(), *_tensor_rows(), *_matrix_rows(), *_tensor_memory_rows())
}
"""Every form by its stem."""


@cache
def find_row(opcode: str) -> Row | None:
    """Return the row of an instruction by its whole opcode; None for an unknown instruction."""
    stem = opcode
    while stem:
        row = ROWS.get(stem)
        if row is not None:
            return row
        stem = stem.rpartition(".")[0]
    return None


@cache
def _operand_pattern(operands: str) -> tuple[tuple[str, bool], ...]:
    return tuple((kind, optional == "?") for kind, optional in re.findall(r"(\w)(\??)", operands))


@cache
def _find_target_error(opcode: str, target: str, version: str) -> str | None:
    row = find_row(opcode)
    assert row is not None
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    if match is None:
        return f"unknown target {target}"
    sm, suffix = int(match[1]), match[2]
    major, _, minor = version.partition(".")
    release = (int(major), int(minor or 0))
    if row.stem.startswith("wgmma") and sm != 90:
        return f"{opcode} exists on sm_90a only"
    if row.stem.startswith("tcgen05") and sm >= 100 and sm not in _TENSOR_TARGETS:
        return f"{opcode} exists on sm_100a and its relatives, not on {target}"
    parts = set(opcode.split("."))
    needs = [Requirement("", row.sm, row.ptx, row.needs_arch_specific)]
    needs.extend(requirement for requirement in row.requirements if requirement.modifier in parts)
    for need in needs:
        subject = f".{need.modifier} of {opcode}" if need.modifier else opcode
        if sm < need.sm:
            return f"{subject} needs sm_{need.sm}, the target is {target}"
        if release < need.ptx:
            return f"{subject} needs PTX {need.ptx[0]}.{need.ptx[1]}, the module says {version}"
        if need.needs_arch_specific and not suffix:
            return f"{subject} needs an architecture-specific target such as {target}a"
    return None


def check_instruction(instruction: ptx.Instruction, target: str, version: str) -> str | None:
    """Return what is wrong with an instruction on a target (`sm_90a`) at a PTX version (`8.0`); None if nothing is."""
    row = find_row(instruction.opcode)
    if row is None:
        return f"unknown instruction {instruction.opcode}"
    return _find_operand_error(instruction, row) or _find_target_error(instruction.opcode, target, version)


def _find_operand_error(instruction: ptx.Instruction, row: Row) -> str | None:
    pattern = _operand_pattern(row.operands)
    operands = instruction.operands
    least = sum(not optional for _, optional in pattern)
    if not least <= len(operands) <= len(pattern):
        wanted = str(len(pattern)) if least == len(pattern) else f"{least} to {len(pattern)}"
        return f"{instruction.opcode} takes {wanted} operands, not {len(operands)}"
    for position, (operand, (kind, _)) in enumerate(zip(operands, pattern, strict=False), start=1):
        if not _is_operand_kind(operand, kind):
            return f"operand {position} of {instruction.opcode} must be {_WORDS[kind]}"
    return None


def _is_operand_kind(operand: ptx.Operand, kind: str) -> bool:
    return isinstance(operand, _KINDS[kind])
