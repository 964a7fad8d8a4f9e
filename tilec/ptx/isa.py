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
    """The requirements of a modifier, one of the dot-separated parts of an opcode, beyond its row's."""

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


_OPERAND_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "d": ("a destination register", (ptx.Reg,)),
    "D": ("a destination register or pair", (ptx.Reg, ptx.Pair)),
    "v": ("a register or vector", (ptx.Reg, ptx.Vector)),
    "w": ("a register, vector or constant", (ptx.Reg, ptx.Vector, ptx.Imm, ptx.FloatImm)),
    "s": ("a register or constant", (ptx.Reg, ptx.Imm, ptx.FloatImm, ptx.Symbol)),
    "y": ("a register, constant or vector", (ptx.Reg, ptx.Imm, ptx.Symbol, ptx.Vector)),
    "x": ("a source", (ptx.Reg, ptx.Imm, ptx.FloatImm, ptx.Symbol, ptx.Vector, ptx.NotPred)),
    "p": ("a predicate", (ptx.Reg, ptx.NotPred, ptx.Imm)),
    "m": ("an address", (ptx.Address,)),
    "t": ("a tensor address", (ptx.TensorAddress,)),
    "a": ("a register or address", (ptx.Reg, ptx.Imm, ptx.Address)),
    "o": ("a register, constant, address or vector", (ptx.Reg, ptx.NotPred, ptx.Imm, ptx.Address, ptx.Vector)),
    "l": ("a label", (ptx.Symbol,)),
    "i": ("an integer", (ptx.Imm,)),
    "c": ("a function or a list in parentheses", (ptx.Arguments, ptx.Symbol, ptx.Reg)),
}
"""The name and the types of each kind of operand."""

# Modifiers that are newer than their instructions.
_BF16 = (Requirement("bf16", 80, (7, 0)), Requirement("bf16x2", 80, (7, 0)))
_BF16_ARITHMETIC = (Requirement("bf16", 90, (7, 8)), Requirement("bf16x2", 90, (7, 8)))
_PAIRS_OF_F32 = Requirement("f32x2", 100, (8, 6))
_HALF_ORDER = (Requirement("f16", 80, (7, 0)), Requirement("f16x2", 80, (7, 0)), *_BF16)
_FP8 = (Requirement("e4m3", 89, (8, 4)), Requirement("e5m2", 89, (8, 4)))
_BYTE_MATRICES = tuple(Requirement(shape, 100, (8, 6), True) for shape in ("m16n16", "m8n16", "m16n8"))
_MMA = (
    *(*_BF16, *_FP8),
    *(Requirement(f"kind::{kind}", 120, (8, 7), True) for kind in ("f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4")),
)
_FP8_CONVERSIONS = (Requirement("e4m3x2", 89, (8, 1)), Requirement("e5m2x2", 89, (8, 1)))
_TANH_EX2_HALF = (Requirement("f16", 75, (7, 0)), Requirement("f16x2", 75, (7, 0)), *_BF16_ARITHMETIC)
_CLUSTER_SCOPE = (Requirement("cluster", 90, (7, 8)), Requirement("shared::cluster", 90, (7, 8)))
_SHARED_CTA = (Requirement("shared::cta", 30, (7, 8)),)
_EXPECT_TX = Requirement("expect_tx", 90, (8, 0))
_PAIR = (Requirement("cta_group::1", 100, (8, 6), True), Requirement("cta_group::2", 100, (8, 6), True))
_TENSOR_PRODUCTS = (
    *(Requirement("block16", 100, (8, 8)), Requirement("block32", 100, (8, 8))),
    Requirement("kind::mxf4nvf4", 100, (8, 7)),
)
_TENSOR_TARGETS = (100, 101, 103, 110)
"""The chips with tensor memory."""
_SIMD = "vadd vsub vavrg vabsdiff vmin vmax"


def _make_rows(
    stems: str,
    operands: str,
    sm: int = 0,
    release: tuple[int, int] = (1, 0),
    requirements: tuple[Requirement, ...] = (),
) -> list[Row]:
    """Return table rows for several stems, separated by spaces, that otherwise are the same."""
    return [Row(stem, operands, sm, release, requirements=requirements) for stem in stems.split()]


def _make_specific_rows(
    stems: str, operands: str, sm: int, release: tuple[int, int], requirements: tuple[Requirement, ...] = ()
) -> list[Row]:
    """Return table rows for several stems of instructions that need an architecture-specific target, such as sm_90a."""
    return [Row(stem, operands, sm, release, True, requirements) for stem in stems.split()]


def _build_rows() -> tuple[Row, ...]:
    """Return the table's rows of all instructions but tensor copies."""
    return (
        # Arithmetic and logic.
        *_make_rows("add sub mul", "dss", requirements=(*_BF16_ARITHMETIC, _PAIRS_OF_F32)),
        *_make_rows("add.cc addc sub.cc subc mul24 div rem and or xor shl shr copysign", "dss"),
        *_make_rows("mad.lo.cc mad.hi.cc madc mad24 mad sad prmt bfe shf slct", "dsss"),
        *_make_rows("min max", "dsss?", requirements=_HALF_ORDER),
        *_make_rows("abs neg", "ds", requirements=_BF16),
        *_make_rows("not popc clz brev cnot rcp sqrt rsqrt lg2 sin cos bfind testp", "ds"),
        *_make_rows("fma", "dsss", requirements=(*_BF16, _PAIRS_OF_F32)),
        *_make_rows("ex2", "ds", requirements=_TANH_EX2_HALF),
        *_make_rows("tanh", "ds", 75, (7, 0), _TANH_EX2_HALF),
        *_make_rows("bfi", "dssss"),
        *_make_rows("lop3", "Dsssip?"),
        *_make_rows("selp", "dssp"),
        *_make_rows("setp", "Dssp?", requirements=_BF16_ARITHMETIC),
        *_make_rows("set", "dssp?"),
        *_make_rows("dp4a dp2a", "dsss", 61, (5, 0)),
        *_make_rows("szext bmsk", "dss", 70, (7, 6)),
        *_make_rows("fns", "dsss", 30, (6, 0)),
        *(Row(f"{name}{lanes}", "dsss?", 30, (3, 0)) for name in _SIMD.split() for lanes in (2, 4)),
        # Moves and conversions.
        *_make_rows("mov", "vx"),
        *_make_rows("cvt", "dss?", requirements=(*_BF16, *_FP8_CONVERSIONS, Requirement("tf32", 80, (7, 0)))),
        *_make_rows("cvt.pack", "dsss?", 72, (6, 5)),
        *_make_rows("cvta isspacep", "ds"),
        *_make_rows("getctarank", "ds", 90, (7, 8)),
        *_make_rows("mapa", "dss", 90, (7, 8)),
        # Memory.
        *_make_rows("ldu", "vm"),
        *_make_rows("ld", "vms?", requirements=(*_CLUSTER_SCOPE, *_SHARED_CTA)),
        *_make_rows("st", "mws?", requirements=(*_CLUSTER_SCOPE, *_SHARED_CTA)),
        *_make_rows("atom", "vmww?s?", requirements=(*_CLUSTER_SCOPE, *_SHARED_CTA, *_BF16_ARITHMETIC)),
        *_make_rows("red", "mws?", requirements=(*_CLUSTER_SCOPE, *_SHARED_CTA, *_BF16_ARITHMETIC)),
        *_make_rows("prefetch prefetchu", "m"),
        *_make_rows("discard applypriority", "mi", 80, (7, 4)),
        *_make_rows("pmevent", "i"),
        *_make_rows("prefetch.tensormap prefetch.param.tensormap", "m", 90, (8, 0)),
        *_make_rows("createpolicy", "ds?s?s?", 80, (7, 4)),
        *_make_rows("createpolicy.fractional", "ds?", 80, (7, 4)),
        *_make_rows("createpolicy.range", "dmss", 80, (7, 4)),
        *_make_rows("createpolicy.cvt", "ds", 80, (7, 4)),
        # Control.
        *_make_rows("bra", "l"),
        *_make_rows("brx.idx", "sl"),
        *_make_rows("call", "cc?c?c?"),
        *_make_rows("ret exit trap brkpt", ""),
        *_make_rows("nanosleep", "s", 70, (6, 3)),
        *_make_rows("griddepcontrol", "", 90, (7, 8)),
        *_make_specific_rows("setmaxnreg", "i", 90, (8, 0)),
        # Barriers and fences.
        *_make_rows("bar.sync bar.cta.sync", "ss?"),
        *_make_rows("bar.arrive bar.cta.arrive", "ss"),
        *_make_rows("bar.red bar.cta.red", "dsxx?"),
        *_make_rows("barrier.sync barrier.cta.sync", "ss?", 30, (6, 0)),
        *_make_rows("barrier.arrive barrier.cta.arrive", "ss", 30, (6, 0)),
        *_make_rows("barrier.red barrier.cta.red", "dsxx?", 30, (6, 0)),
        *_make_rows("barrier.cluster.arrive barrier.cluster.wait", "", 90, (7, 8)),
        *_make_rows("bar.warp.sync", "s", 30, (6, 0)),
        *_make_rows("membar", ""),
        *_make_rows("fence", "", 70, (6, 0), _CLUSTER_SCOPE),
        *_make_rows("fence.proxy.async fence.mbarrier_init", "", 90, (8, 0)),
        *_make_rows("fence.proxy.async::generic", "", 90, (8, 6)),
        *_make_rows("fence.proxy.alias", "", 70, (7, 5)),
        *_make_rows("fence.proxy.tensormap::generic", "m?i?", 90, (8, 3)),
        *_make_specific_rows("tensormap.replace", "mss?", 90, (8, 3)),
        *_make_rows("tensormap.cp_fenceproxy", "mmi", 90, (8, 3)),
        # Threads of a warp among themselves.
        *_make_rows("shfl.sync", "Dssss", 30, (6, 0)),
        *_make_rows("vote.sync", "dps", 30, (6, 0)),
        *_make_rows("vote", "dp"),
        *_make_rows("match.any.sync", "dss", 70, (6, 0)),
        *_make_rows("match.all.sync", "Dss", 70, (6, 0)),
        *_make_rows("redux.sync", "dss", 80, (7, 0), (Requirement("f32", 100, (8, 6), needs_arch_specific=True),)),
        *_make_rows("activemask", "d", 30, (6, 2)),
        *_make_rows("elect.sync", "Ds", 90, (8, 0)),
        # mbarrier.
        *_make_rows("mbarrier.init", "ms", 80, (7, 0), _SHARED_CTA),
        *_make_rows("mbarrier.inval", "m", 80, (7, 0), _SHARED_CTA),
        *_make_rows("mbarrier.arrive", "dms?", 80, (7, 0), (_EXPECT_TX, *_CLUSTER_SCOPE, *_SHARED_CTA)),
        *_make_rows("mbarrier.arrive_drop", "dms?", 80, (7, 0), (*_CLUSTER_SCOPE, *_SHARED_CTA)),
        *_make_rows("mbarrier.pending_count", "ds", 80, (7, 0)),
        *_make_rows("mbarrier.expect_tx mbarrier.complete_tx", "ms", 90, (8, 0)),
        *_make_rows("mbarrier.test_wait", "dms", 80, (7, 0), (Requirement("parity", 80, (7, 1)), *_SHARED_CTA)),
        *_make_rows("mbarrier.try_wait", "dmss?", 90, (7, 8)),
        # Asynchronous copies.
        *_make_rows("cp.async", "mmis?s?", 80, (7, 0)),
        *_make_rows("cp.async.commit_group cp.async.wait_all", "", 80, (7, 0)),
        *_make_rows("cp.async.wait_group", "i", 80, (7, 0)),
        *_make_rows("cp.async.mbarrier.arrive", "m", 80, (7, 0)),
        *_make_rows("cp.async.bulk.shared::cluster", "mmsms?s?", 90, (8, 0)),
        *_make_rows("cp.async.bulk.shared::cta", "mmsms?", 90, (8, 6)),
        *_make_rows("cp.async.bulk.global", "mmss?s?", 90, (8, 0), (Requirement("cp_mask", 100, (8, 6)),)),
        *_make_rows("clusterlaunchcontrol.try_cancel", "mm", 100, (8, 6)),
        *_make_rows("clusterlaunchcontrol.query_cancel", "vv", 100, (8, 6)),
        *_make_rows("cp.async.bulk.commit_group", "", 90, (8, 0)),
        *_make_rows("cp.async.bulk.wait_group", "i", 90, (8, 0)),
        *_make_rows("cp.async.bulk.prefetch", "ms?s?", 90, (8, 0)),
        *_make_rows("cp.reduce.async.bulk", "mmss?", 90, (8, 0)),
        *_make_rows("cp.reduce.async.bulk.shared::cluster", "mmsm", 90, (8, 0)),
        *_make_rows("st.bulk", "msi", 100, (8, 6)),
        *_make_rows("st.async", "mwm", 90, (8, 1)),
        *_make_rows("red.async", "msm", 90, (8, 1)),
        # Matrices.
        *_make_rows("ldmatrix.sync", "vm", 75, (6, 5), _BYTE_MATRICES),
        *_make_rows("stmatrix.sync", "mv", 90, (7, 8), _BYTE_MATRICES),
        *_make_rows("mma.sync", "vvvvs?v?s?v?", 70, (6, 4), (*_MMA, Requirement("m16n8k16", 80, (7, 0)))),
        *_make_rows("mma.sp.sync", "vvvvsis?v?s?v?", 80, (7, 1), _MMA),
        *_make_rows("mma.sp::ordered_metadata.sync", "vvvvsis?v?s?v?", 80, (8, 5), _MMA),
        *_make_rows("movmatrix.sync", "ds", 75, (7, 8)),
        *_make_rows("wmma.load", "vms?", 70, (6, 0)),
        *_make_rows("wmma.store", "mvs?", 70, (6, 0)),
        *_make_rows("wmma.mma", "vvvv", 70, (6, 0)),
        *_make_specific_rows("wgmma.fence wgmma.commit_group", "", 90, (8, 0)),
        *_make_specific_rows("wgmma.wait_group", "i", 90, (8, 0)),
        *_make_specific_rows("wgmma.mma_async", "vvspi?i?i?i?", 90, (8, 0)),
        *_make_specific_rows("wgmma.mma_async.sp", "vvssipi?i?i?i?", 90, (8, 2)),
        # Tensor memory.
        *_make_specific_rows("tcgen05.alloc tcgen05.cp", "ms", 100, (8, 6)),
        *_make_specific_rows("tcgen05.dealloc", "ss", 100, (8, 6)),
        *_make_specific_rows("tcgen05.relinquish_alloc_permit tcgen05.wait::ld tcgen05.wait::st", "", 100, (8, 6)),
        *_make_specific_rows("tcgen05.ld", "vmi?", 100, (8, 6)),
        *_make_specific_rows("tcgen05.st", "mwv?", 100, (8, 6)),
        *_make_specific_rows("tcgen05.shift", "m", 100, (8, 6)),
        *_make_specific_rows("tcgen05.mma", "maso?o?o?o?o?o?", 100, (8, 6), _TENSOR_PRODUCTS),
        *_make_specific_rows("tcgen05.mma.ws", "maso?o?o?o?", 100, (8, 6)),
        *_make_specific_rows("tcgen05.commit", "ms?", 100, (8, 6)),
        *_make_specific_rows("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync", "", 100, (8, 6)),
    )


def _build_tensor_copy_rows(rank: str) -> tuple[Row, ...]:
    """Return the table's rows of tensor copies of a rank, such as `2d`."""
    return (
        Row(f"cp.async.bulk.tensor.{rank}.shared::cluster", "mtmy?s?s?", 90, (8, 0), requirements=_PAIR),
        Row(f"cp.async.bulk.tensor.{rank}.shared::cta", "mtmy?s?", 90, (8, 6), requirements=_PAIR),
        Row(f"cp.async.bulk.tensor.{rank}.global", "tms?", 90, (8, 0)),
        Row(f"cp.reduce.async.bulk.tensor.{rank}.global", "tms?", 90, (8, 0)),
        Row(f"cp.async.bulk.prefetch.tensor.{rank}", "ts?", 90, (8, 0)),
    )


_ALL_ROWS = (*_build_rows(), *(row for rank in ("1d", "2d", "3d", "4d", "5d") for row in _build_tensor_copy_rows(rank)))
ROWS: dict[str, Row] = {row.stem: row for row in _ALL_ROWS}
"""Every form by its stem."""


@cache
def find_row(opcode: str) -> Row | None:
    """Return the row of the longest leading part of an opcode that the table has; None for an unknown instruction."""
    stem = opcode
    while stem and stem not in ROWS:
        stem = stem.rpartition(".")[0]
    return ROWS.get(stem)


@cache
def _parse_operand_pattern(operands: str) -> tuple[tuple[str, bool], ...]:
    """Return, for each operand of a row's pattern, its letter and whether it may be left out."""
    return tuple((kind, optional == "?") for kind, optional in re.findall(r"(\w)(\??)", operands))


@cache
def _find_target_error(opcode: str, target: str, version: str) -> str | None:
    """Return in words why the target or the PTX version lacks an instruction or its modifier; None if they have it."""
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
    """Return the error of an instruction on a target (`sm_90a`) at a PTX version (`8.0`) in words; None if it has
    none."""
    row = find_row(instruction.opcode)
    if row is None:
        return f"unknown instruction {instruction.opcode}"
    return _find_operand_error(instruction, row) or _find_target_error(instruction.opcode, target, version)


def _find_operand_error(instruction: ptx.Instruction, row: Row) -> str | None:
    """Return in words which operand has the wrong kind, or that their number is wrong; None if they fit the row."""
    pattern = _parse_operand_pattern(row.operands)
    operands = instruction.operands
    least = sum(not optional for _, optional in pattern)
    if not least <= len(operands) <= len(pattern):
        wanted = str(len(pattern)) if least == len(pattern) else f"{least} to {len(pattern)}"
        return f"{instruction.opcode} takes {wanted} operands, not {len(operands)}"
    for position, (operand, (kind, _)) in enumerate(zip(operands, pattern, strict=False), start=1):
        name, types = _OPERAND_KINDS[kind]
        if not isinstance(operand, types):
            return f"operand {position} of {instruction.opcode} must be {name}"
    return None
