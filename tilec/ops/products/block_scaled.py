"""Block-scaled products, with a scale for every few elements along K: T.tcgen05_gemm_blockscaled; the copy of scales.

Scales lie in tensor memory, four of a row in a word, lowest byte first (PTX ISA, tcgen05 "Scale factor layout"). The
first column has rows 0 to 31, the second rows 32 to 63, and so on; each quarter of the lanes has the same.
T.tcgen05_cp_warpx4 copies them there from shared memory, where a line of 16 bytes has the words of rows r, r + 32,
r + 64 and r + 96. T.tcgen05_sf_warp_transpose makes such lines from words in row order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, cast

from tilec.ir import warp
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.tile import Region, TileOp
from tilec.ir.types import BOOL, FLOAT4_E2M1, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT32, UINT32, DType
from tilec.ops.form import UNKNOWN_LEADER, Barrier, Condition, Index, Leader, Shared, TensorMemory, Yes
from tilec.ops.language.signature import Call, Parameter, Signature, as_expr
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import Demand, LoweringContext, list_no_demands, make_demand
from tilec.ops.products.gemm import get_gemm_shape, get_matrix_shape
from tilec.ops.products.tcgen05 import build_tensor_arrive
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.ops.synchronisation.barriers import as_barrier
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS = 128
"""Rows of a block of scales, which takes four columns."""
SCALES_PER_WORD = 4
OperandType = Literal["e4m3", "e5m2", "e2m1"]
MmaKind = Literal["mxf8f6f4", "mxf4nvf4", "mxf4"]
Granularity = Literal[16, 32, 64, 128]
OPERAND_TYPES: dict[DType, OperandType] = {FLOAT8_E4M3: "e4m3", FLOAT8_E5M2: "e5m2", FLOAT4_E2M1: "e2m1"}
_GRANULARITIES = {FLOAT8_E4M3: (32, 64, 128), FLOAT8_E5M2: (32, 64, 128), FLOAT4_E2M1: (16, 32)}
"""The granularities of a scale along K, in elements, for each type."""


@dataclass(frozen=True, slots=True)
class ScaledGemm(TileOp):
    """`c` += (`a` · scales) · (`b` · scales), with `c` cleared first where `clear_when`. A scale of A covers `a_step`
    elements along K. `start` is the tiles' first element along K. The tensor cores arrive at `barrier`. `paired`
    products belong to two blocks: each has its rows of A and their scales, half of B's columns, and all of B's scales.
    """

    name = "scaled_gemm"
    reaches_regions = False
    is_in_tensor_memory = True
    done_by = "one thread"
    a: Shared
    b: Shared
    c: TensorMemory
    a_scales: TensorMemory
    b_scales: TensorMemory
    a_step: Granularity
    a_type: OperandType
    b_step: Granularity
    b_type: OperandType
    clear_when: Condition
    kind: MmaKind
    leader: Leader
    start: Index
    transpose_A: bool
    transpose_B: bool
    barrier: Barrier | None = None
    paired: Yes | None = None
    via: Literal["tcgen05"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def is_paired(self) -> bool:
        return self.paired is not None

    @property
    def commits(self) -> bool:
        """Return whether the tensor cores arrive at a barrier for the product: it has one."""
        return self.barrier is not None


@dataclass(frozen=True, slots=True)
class ScaleCopy(TileOp):
    """Copies scales from shared to tensor memory, in order with the products that `leader` issues; with `paired`, in
    each block of the pair its own."""

    name = "scale_copy"
    reaches_regions = False
    is_in_tensor_memory = True
    done_by = "one thread"
    source: Shared
    destination: TensorMemory
    leader: Leader
    paired: Yes | None = None
    via: Literal["tcgen05"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def is_paired(self) -> bool:
        return self.paired is not None


def select_mma_kind(dtype: DType, step: int) -> MmaKind:
    """Return the kind of tcgen05.mma for A and B of this type and a scale for every `step` elements along K."""
    if dtype != FLOAT4_E2M1:
        return "mxf8f6f4"
    return "mxf4nvf4" if step == 16 else "mxf4"


def _read_operand(call: Call, name: str, scope: str) -> Region:
    """Return an operand's region; raises an error if its buffer is not in the memory `scope`, shared or tmem."""
    buffer = call.buffer(name)
    made_by = {"shared": "T.alloc_shared", "tmem": "T.alloc_tmem"}[scope]
    if buffer is not None and buffer.scope != scope:
        raise_error(
            "wrong-scope",
            f"{call.name}: {name} must be a tile of {made_by}",
            call[name].span,
            f"{buffer.name} is not",
            secondary=(Label(buffer.span, "from here"),),
            help="T.copy it to a shared tile first"
            if scope == "shared"
            else "accumulators and scales are in tensor memory",
        )
    return call.read_region(name)


def _check_scaled_gemm(call: Call) -> TileOp:
    """Return the product of T.tcgen05_gemm_blockscaled, its leader unknown yet; raises errors for unfit types, shapes,
    scales.
    """
    a, b = _read_operand(call, "A", "shared"), _read_operand(call, "B", "shared")
    c, sfa, sfb = (_read_operand(call, name, "tmem") for name in ("C", "SFA_tmem", "SFB_tmem"))
    transposed = call.read_boolean("transpose_A"), call.read_boolean("transpose_B")
    _check_dtypes(call, a, b, c, transposed)
    shapes = (
        get_matrix_shape(a)[:: -1 if transposed[0] else 1],
        get_matrix_shape(b)[:: -1 if transposed[1] else 1],
        get_matrix_shape(c),
    )
    (m, k), (b_k, b_n), of_c = shapes
    is_pair = call.read_boolean("use_2cta")
    n = 2 * b_n if is_pair else b_n
    if k != b_k or (m, n) != of_c:
        text = ", ".join(f"{name} is {show_shape(r.extent)}" for name, r in (("A", a), ("B", b), ("C", c)))
        way_out = "A is (M, K), C is (M, N)" + (", and each block has half of B's columns" if is_pair else "")
        raise_error("shape-mismatch", f"operands of {call.name} disagree", call.span, text, help=way_out)
    steps = tuple(_read_step(call, f"sf_{name}_granularity_k", a.buffer.dtype, k) for name in "ab")
    for name, scales, rows in (("SFA_tmem", sfa, m), ("SFB_tmem", sfb, n)):
        wanted = (ROWS, SCALES_PER_WORD * -(-rows // ROWS))
        if get_matrix_shape(scales) != wanted or scales.buffer.dtype != UINT32:
            raise_error(
                "shape-mismatch",
                f"{call.name}: {name} does not hold the scales of {rows} rows",
                call[name].span,
                f"{scales.buffer.name} is {scales.buffer.dtype}{show_shape(scales.extent)}",
                secondary=(Label(scales.buffer.span, "from here"),),
                help=f'allocate it as T.alloc_tmem({show_shape(wanted)}, "uint32"): a word has four scales of a row',
            )
    return ScaledGemm(
        a, b, c, sfa, sfb, transpose_A=transposed[0], transpose_B=transposed[1], leader=UNKNOWN_LEADER,
        clear_when=as_expr(call["clear_accum"], BOOL), start=as_expr(call["k_start"]), a_step=steps[0],
        b_step=steps[1], a_type=OPERAND_TYPES[a.buffer.dtype], b_type=OPERAND_TYPES[b.buffer.dtype],
        kind=select_mma_kind(a.buffer.dtype, steps[0]),
        barrier=None if call["mbar"].value is None else as_barrier(call["mbar"], call.name),
        paired=True if is_pair else None, span=call.span,
    )  # fmt: skip


def _check_dtypes(call: Call, a: Region, b: Region, c: Region, transposed: tuple[bool, bool]) -> None:
    """Raise an error for element types and storage orders that no block-scaled product takes."""
    for name, region in (("A", a), ("B", b)):
        if region.buffer.dtype not in OPERAND_TYPES:
            raise_error(
                "wrong-dtype",
                f"{call.name} cannot multiply {region.buffer.dtype}",
                call[name].span,
                f"this is {region.buffer.dtype}",
                help=f"supported: {', '.join(d.name for d in OPERAND_TYPES)}",
            )
    fours = [r.buffer.dtype == FLOAT4_E2M1 for r in (a, b)]
    if fours[0] != fours[1]:
        label = f"A is {a.buffer.dtype}, B is {b.buffer.dtype}"
        raise_error("dtype-mismatch", f"{call.name}: both operands must have 4 bits, or both 8", call.span, label)
    if fours[0] and transposed != (False, True):
        wanted = "A must be (M, K) and B (N, K)"
        raise_error(
            "unsupported-operand",
            f"{call.name} of {a.buffer.dtype} needs both operands stored along K",
            call.span,
            wanted,
            help="store both along K and pass transpose_B=True",
        )
    if c.buffer.dtype != FLOAT32:
        label = f"this is {c.buffer.dtype}"
        raise_error(
            "wrong-dtype", f"{call.name} accumulates in float32", call["C"].span, label, help="allocate C as float32"
        )


def _fits_word(k: int, step: int) -> bool:
    """Return whether a word of four scales, each for `step` elements along K, covers `k`, here and in later tiles."""
    return k <= SCALES_PER_WORD * step and not (SCALES_PER_WORD * step % k if k > step else step % k)


def _read_step(call: Call, name: str, dtype: DType, k: int) -> Granularity:
    """Return the number of elements along K that share a scale; raises an error if the type or K does not allow it."""
    step = call.read_integer(name)
    if step not in _GRANULARITIES[dtype]:
        call.refuse(name, f"{' or '.join(map(str, _GRANULARITIES[dtype]))} for {dtype}")
    if dtype == FLOAT4_E2M1 and step != call.read_integer("sf_a_granularity_k"):
        call.refuse(name, "the same for A and B")
    if not _fits_word(k, step):
        raise_error(
            "unsupported-shape",
            f"{call.name}: a word holds the scales of {SCALES_PER_WORD * step} elements along K, but the tile has {k}",
            call[name].span,
            help=f"give the tile {step}, {2 * step} or {4 * step} elements along K",
        )
    return cast(Granularity, step)


def decode_scales(
    words: NDArray[np.generic], rows: int, first: int, count: int, step: int, kind: str
) -> NDArray[np.floating]:
    """Return the scale of each element of [rows, count], one for `step` elements along K, unpacked from words of four.
    Column 0 is element `first` along K. `kind` tells the scales' format: ue4m3 for mxf4nvf4, else ue8m0.
    """
    import numpy as np

    row = np.arange(rows)
    octets = (
        np.ascontiguousarray(words.astype(np.uint32)[row % 32, row // 32]).view(np.uint8).reshape(rows, SCALES_PER_WORD)
    )
    exponent, fraction = octets.astype(np.int64), np.ones(octets.shape)
    if kind == "mxf4nvf4":  # ue4m3: four bits of exponent, three of fraction; else ue8m0, an exponent alone
        exponent, leading = octets.astype(np.int64) >> 3 & 15, octets >> 3 & 15 > 0
        fraction = (octets & 7) / 8 + leading
        exponent = np.maximum(exponent, 1) + 120
    factors: NDArray[np.floating] = np.ldexp(fraction, exponent - 127)
    return factors[:, (first + np.arange(count)) // step % SCALES_PER_WORD]


def _evaluate_scaled_gemm(op: ScaledGemm, env: Environment) -> None:
    """Compute the block-scaled product, in both blocks of a pair: each from its A and all columns of B."""
    import numpy as np

    blocks = [env.peer(0), env.peer(1)] if op.is_paired else [env]
    parts = [block.read(op.b).reshape(get_matrix_shape(op.b)) for block in blocks]
    right = np.concatenate([part if op.transpose_B else part.T for part in parts])
    for block in blocks:
        _multiply_block(op, right, block)


def _multiply_block(op: ScaledGemm, columns: NDArray[np.generic], env: Environment) -> None:
    """Compute the product of one block's A and these columns of B, stored along K, in float64, add C unless it is
    cleared, and write C.
    """
    import numpy as np

    a, _, c, sfa, sfb = op.regions
    left: NDArray[np.floating] = env.read(a).reshape(get_matrix_shape(a)).astype(np.float64)
    left, right = left.T if op.transpose_A else left, columns.astype(np.float64)
    first = int(env.scalar(op.start))
    for name, step, scales in (("a", op.a_step, sfa), ("b", op.b_step, sfb)):
        words = env.read(scales).reshape(get_matrix_shape(scales))
        matrix = left if name == "a" else right
        scaled = matrix * decode_scales(words, *(len(matrix), first, matrix.shape[1]), step, op.kind)
        left, right = (scaled, right) if name == "a" else (left, scaled)
    product = left @ right.T
    if not env.scalar(op.clear_when):
        product = product + env.read(c).reshape(get_matrix_shape(c)).astype(np.float64)
    env.write(c, product.reshape(c.extent))


_PARAMETERS = (
    *map(Parameter, ("A", "B", "C", "SFA_tmem", "SFB_tmem")),
    *(Parameter(name, False) for name in ("transpose_A", "transpose_B", "clear_accum")),
    Parameter("wg_wait", 0, hint="the tensor cores arrive at `mbar` instead"),
    Parameter("mbar", None),
    *(Parameter(name, keyword_only=True) for name in ("k_start", "sf_a_granularity_k", "sf_b_granularity_k")),
    Parameter("use_2cta", False, keyword_only=True),
)

define_operation(
    ScaledGemm,
    lambda op: Effects(op.regions, (op.c,)),
    _evaluate_scaled_gemm,
    Spelling(
        Signature("T.tcgen05_gemm_blockscaled", _PARAMETERS),
        """Begin C += (op(A) · scales) · (op(B) · scales) by tcgen05.mma, and go on, as T.tcgen05_gemm does.

        SFA_tmem and SFB_tmem are of uint32, (128, 4) for each 128 rows of A and of op(B).T: four scales of a
        row in a word, each for `sf_a_granularity_k` (`sf_b_granularity_k`) elements along K. `k_start`, a
        multiple of K, is where along K the tiles begin; so it says which of the four come next. Of 8-bit
        floats (kind::mxf8f6f4) a scale is a float8_e8m0fnu for 32, 64 or 128 elements; of float4_e2m1fn for
        32 (kind::mxf4), or a float8_e4m3 for 16 (kind::mxf4nvf4). With `use_2cta` it is a product of two blocks,
        as T.tcgen05_gemm has it; each of them has the scales of all of B.
        """,
        _check_scaled_gemm,
    ),
)


@attach_facet(ScaledGemm, "lower")
def lower_scaled_gemm(op: ScaledGemm, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to one tcgen05.mma with scales, and the tensor cores' arrival if the product has a barrier."""
    a, b, c, sfa, sfb = (r.buffer for r in op.regions)
    scales = warp.Scales(sfa, sfb, op.start, op.a_step, op.b_step, (op.a_type, op.b_type), op.kind)
    transposed = op.transpose_A, op.transpose_B
    product = warp.TensorMma(
        a, b, c, *transposed, op.clear_when, op.leader, scales=scales, cursors=context.cursors, span=op.span
    )
    product = replace(product, paired=op.is_paired)
    return (product, build_tensor_arrive(op)) if op.commits else (product,)


@attach_facet(ScaledGemm, "demand")
def list_scaled_gemm_demands(op: ScaledGemm, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demand of a block-scaled product: that of the same product without scales."""
    m, n, k = get_gemm_shape(op)
    rows, columns = min(m, ROWS), min(n, 256)
    count = (m // rows) * (n // columns) * (k * op.regions[0].buffer.dtype.bits // 8 // 32)
    return (make_demand("tcgen05.mma.ss", m=rows, n=columns, count=max(count, 1)),)


# ---- the copy --------------------------------------------------------------------------------------------------------


def _check_scale_copy(call: Call) -> TileOp:
    """Return the copy of T.tcgen05_cp_warpx4, its leader unknown yet; refuses all but 128 · n words to (128, 4 · n)."""
    source, destination = _read_operand(call, "smem_src", "shared"), _read_operand(call, "tmem_dst", "tmem")
    words = source.extent[-1]
    wanted = (ROWS, words // ROWS * SCALES_PER_WORD)
    if words % ROWS or any(e != 1 for e in source.extent[:-1]) or get_matrix_shape(destination) != wanted:
        raise_error(
            "shape-mismatch",
            f"{call.name} copies 128 words to 128 lanes of four columns",
            call.span,
            f"{source.buffer.name} is {show_shape(source.extent)}, "
            f"{destination.buffer.name} is {show_shape(destination.extent)}",
            help="allocate (128 * n,) in shared memory, and (128, 4 * n) by T.alloc_tmem",
        )
    for region in (source, destination):
        if region.buffer.dtype != UINT32:
            label = f"{region.buffer.name} is {region.buffer.dtype}"
            raise_error("wrong-dtype", f"{call.name} copies words", call.span, label, help="allocate both as uint32")
    paired: Literal[True] | None = True if call.read_boolean("use_2cta") else None
    return ScaleCopy(source, destination, UNKNOWN_LEADER, paired, span=call.span)


def _evaluate_scale_copy(op: ScaleCopy, env: Environment) -> None:
    """Copy the words of scales to all four quarters of the lanes, in numpy."""
    import numpy as np

    source, destination = op.regions
    for block in [env.peer(0), env.peer(1)] if op.is_paired else [env]:
        lines = block.read(source).reshape(-1, 32, SCALES_PER_WORD)  # [block, lane, word]
        quarter = np.concatenate(list(lines), axis=1)
        block.write(destination, np.tile(quarter, (4, 1)).reshape(destination.extent))


define_operation(
    ScaleCopy,
    list_move_effects,
    _evaluate_scale_copy,
    Spelling(
        Signature(
            "T.tcgen05_cp_warpx4",
            (Parameter("smem_src"), Parameter("tmem_dst"), Parameter("use_2cta", False, keyword_only=True)),
        ),
        """Copy scales to tensor memory: of each 128 words four to a lane, the same to each quarter of lanes.

        The tensor cores copy in order with the products that the same thread issues. With `use_2cta` those of both
        blocks of a pair copy, each from its own shared memory.
        `T.tcgen05_sf_warp_transpose(smem_src)` brings words in the order of the rows into the order of the
        lanes, in place.
        """,
        _check_scale_copy,
    ),
    demand=list_no_demands,
    lower=lambda op, context: (
        warp.TensorCopy(op.source.buffer, op.destination.buffer, op.leader, cursors=context.cursors, span=op.span),
    ),
)


@attach_facet(ScaledGemm, "agrees")
def verify_scaled_gemm(op: ScaledGemm) -> Iterator[str]:
    """Yield a message where the operands of a block-scaled product disagree in shape, type, scale step or scale
    storage."""
    a, b, c, *scales = op.regions
    if any(len(r.extent) < 2 or any(e != 1 for e in r.extent[:-2]) for r in op.regions):
        yield "every operand is a matrix"
        return
    (m, k), (of_b, n) = (
        get_matrix_shape(a)[:: -1 if op.transpose_A else 1],
        get_matrix_shape(b)[:: -1 if op.transpose_B else 1],
    )
    n *= 2 if op.paired else 1
    if k != of_b or (m, n) != get_matrix_shape(c):
        yield "operands disagree on M, N or K"
    types = tuple(OPERAND_TYPES.get(r.buffer.dtype) for r in (a, b))
    if types != (op.a_type, op.b_type) or c.buffer.dtype != FLOAT32:
        yield f"{a.buffer.dtype} and {b.buffer.dtype} are not {op.a_type} and {op.b_type}, summed in float32"
        return
    fours = [r.buffer.dtype == FLOAT4_E2M1 for r in (a, b)]
    if fours[0] != fours[1] or op.kind != select_mma_kind(a.buffer.dtype, op.a_step):
        yield f"kind is {op.kind}, for {a.buffer.dtype} and {b.buffer.dtype}"
    if fours[0] and (op.transpose_A or not op.transpose_B or op.a_step != op.b_step):
        yield "4-bit operands must be stored along K, with the same scale granularity for A and B"
    for rows, step, dtype, words in (
        (m, op.a_step, a.buffer.dtype, scales[0]),
        (n, op.b_step, b.buffer.dtype, scales[1]),
    ):
        if step not in _GRANULARITIES[dtype] or not _fits_word(k, step):
            yield f"a scale is for {step} elements of {k} of {dtype}"
        if get_matrix_shape(words) != (ROWS, SCALES_PER_WORD * -(-rows // ROWS)) or words.buffer.dtype != UINT32:
            yield f"{words.buffer.name} does not hold the scales of {rows} rows"


@attach_facet(ScaleCopy, "agrees")
def verify_scale_copy(op: ScaleCopy) -> Iterator[str]:
    """Yield a message where copied scales are not whole lines of 128 words, do not fill the destination, or are not
    uint32."""
    source, destination = op.regions
    words = source.extent[-1]
    if words % ROWS or any(e != 1 for e in source.extent[:-1]) or len(destination.extent) < 2:
        yield f"{source.buffer.name} {show_shape(source.extent)} is no line of {ROWS} words"
    elif get_matrix_shape(destination) != (ROWS, words // ROWS * SCALES_PER_WORD):
        yield f"{words} words do not fill {destination.buffer.name} {show_shape(destination.extent)}"
    if {r.buffer.dtype for r in op.regions} != {UINT32}:
        yield "scales are copied as words of uint32"
