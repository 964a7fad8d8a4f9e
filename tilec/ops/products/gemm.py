"""T.gemm: C += op(A) · op(B) on tiles. The target decides which tensor-core instruction does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from tilec.ir import types
from tilec.ir.layout import accumulated_depth_order
from tilec.ir.operations.fields import BY_PASSES, In
from tilec.ir.operations.interfaces import Axis, Doer
from tilec.ir.tile import Region, TileOp
from tilec.ir.types import BOOL, DType
from tilec.ops.copies.transpose import AccumulatedOrder
from tilec.ops.form import Barrier, Condition, Leader, OnChip, Shared, Yes
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import WarpPolicy, show_shape
from tilec.ops.products.sparse import METADATA_DTYPES, SPARSE_DTYPES, count_metadata_columns, expand_rows
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation
from tilec.ops.synchronisation.barriers import as_barrier
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ACCUMULATORS: dict[DType, tuple[DType, ...]] = {
    **dict.fromkeys((types.FLOAT8_E4M3, types.FLOAT8_E5M2, types.FLOAT16), (types.FLOAT32, types.FLOAT16)),
    **dict.fromkeys((types.BFLOAT16, types.FLOAT32), (types.FLOAT32,)),
    types.FLOAT64: (types.FLOAT64,),
    **dict.fromkeys((types.INT8, types.UINT8, types.INT4, types.UINT4), (types.INT32,)),
}
"""The types of C, for each element type of A and B."""
_MIXED_TYPES = {types.FLOAT8_E4M3, types.FLOAT8_E5M2}
"""The types of which A may have one and B the other."""

_SCOPES = {
    "A": ("shared", "fragment"), "A_sparse": ("shared", "fragment"), "E": ("shared",), "B": ("shared",),
    "B of mma": ("shared", "fragment"),
    "C": ("fragment",), "C in tensor memory": ("tmem",), "A of tcgen05": ("shared", "tmem"),
}  # fmt: skip


def get_matrix_shape(region: Region) -> tuple[int, int]:
    """Return the rows and columns of a region: its last two extents."""
    rows, columns = region.extent[-2:]
    return rows, columns


Policy = Literal["square", "full_row", "full_col"]


@dataclass(frozen=True, slots=True)
class Gemm(TileOp):
    """`c` += `a` · `b`; a sparse `a` has `metadata`. `c` is cleared first with `clear_accum`, or where `clear_when`.

    `policy` distributes C over the warps; passes set `open` where they chose it. `wait` is "wgmma" if the kernel waits
    itself, "later" if the wait may be in the next iteration. With C in tensor memory, thread `leader` issues the
    product and the tensor cores arrive at `barrier`; `held` marks one without a barrier, for which tilec waits;
    `paired` products belong to two blocks. Passes set the type of packed integers in `nibbles`, and for an 8-bit
    product the `order` of B's rows.
    """

    name = "gemm"
    by_warpgroups = True
    fragments_lie = "its own way"
    order_is_known = True
    a: Annotated[Region, In(("shared", "fragment", "tmem"))]
    b: OnChip
    c: Annotated[Region, In(("fragment", "tmem"))]
    metadata: Shared | None = field(default=None, kw_only=True)
    clear_accum: bool
    policy: Policy
    transpose_A: bool
    transpose_B: bool
    barrier: Barrier | None = None
    clear_when: Condition | None = None
    held: Literal["tmem"] | None = None
    leader: Leader | None = None
    paired: Yes | None = None
    wait: Literal["later", "wgmma"] | None = None
    nibbles: Literal["s4", "u4"] | None = field(default=None, metadata=BY_PASSES)
    open: Yes | None = field(default=None, metadata=BY_PASSES)
    order: AccumulatedOrder | None = field(default=None, metadata=BY_PASSES)
    via: Literal["wgmma", "tcgen05", "mma"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def commits(self) -> bool:
        return self.barrier is not None

    @property
    def is_paired(self) -> bool:
        return self.paired is not None

    @property
    def is_in_tensor_memory(self) -> bool:
        return self.c.buffer.scope == "tmem"

    @property
    def done_by(self) -> Doer:
        return "one thread" if self.is_in_tensor_memory else "all threads"

    @property
    def only_adds(self) -> bool:
        return not self.clear_accum

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the axes M, N and, accumulated, K along which the product can be split; none for a sparse product."""
        if self.metadata is not None:
            return ()
        a, b, c = (len(region.extent) for region in (self.a, self.b, self.c))
        m, k = (a - 1, a - 2) if self.transpose_A else (a - 2, a - 1)
        n, k_of_b = (b - 2, b - 1) if self.transpose_B else (b - 1, b - 2)
        return Axis(((0, m), (2, c - 2))), Axis(((1, n), (2, c - 1))), Axis(((0, k), (1, k_of_b)), folded=True)

    def continued(self) -> Gemm:
        """Return the product without clearing C, to add to another part's result."""
        return replace(self, clear_accum=False)


class GemmOperands(Protocol):
    """The operands that give the shape of a product."""

    @property
    def a(self) -> Region: ...

    @property
    def c(self) -> Region: ...

    @property
    def transpose_A(self) -> bool: ...


def get_gemm_shape(op: GemmOperands) -> tuple[int, int, int]:
    """Return M, N and K of a product, K as A stores it: half of it for a sparse A."""
    m, n = get_matrix_shape(op.c)
    return m, n, get_matrix_shape(op.a)[0 if op.transpose_A else 1]


def _check_gemm(call: Call) -> Gemm:
    """Return the product of a call of T.gemm: with C in tensor memory a T.tcgen05_gemm for which tilec may wait.
    Without a barrier it does wait; `mbar` is refused for C elsewhere."""
    buffer = call.buffer("C")
    if buffer is not None and buffer.scope == "tmem":
        op = _check_tcgen05_gemm(call)
        return replace(op, wait=None, held="tmem" if op.barrier is None else None)
    if call["mbar"].value is not None:
        call.refuse("mbar", "omitted, unless C is a tile of T.alloc_tmem")
    return _check_product(call, "A")


def _check_sparse_gemm(call: Call) -> Gemm:
    """Return the product of a call of T.gemm_sp; raises an error for transpose_E, or metadata that does not fit A."""
    op = _check_product(call, "A_sparse")
    if call.read_boolean("transpose_E"):
        raise_error(
            "unsupported-operand",
            "T.gemm_sp: a transposed E must be a whole shared tile",
            call["E"].span,
            "this is a part of one",
            help="T.copy it to a shared tile of its own",
        )
    a, metadata = op.regions[0], _read_matrix(call, "E")
    stored = metadata.buffer.dtype
    if a.buffer.dtype.name not in SPARSE_DTYPES:
        raise_error(
            "wrong-dtype",
            f"T.gemm_sp cannot multiply {a.buffer.dtype}",
            call["A_sparse"].span,
            f"this is {a.buffer.dtype}",
            help=f"supported: {', '.join(SPARSE_DTYPES)}",
        )
    if stored not in METADATA_DTYPES:
        raise_error(
            "wrong-dtype",
            f"T.gemm_sp: E cannot be {stored}",
            call["E"].span,
            f"this is {stored}",
            secondary=(Label(metadata.buffer.span, "from here"),),
            help=f"allocate it as {', '.join(d.name for d in METADATA_DTYPES[:-1])} or {METADATA_DTYPES[-1]}",
        )
    m, _, k = get_gemm_shape(op)
    wanted = (m, count_metadata_columns(k, a.buffer.dtype, stored))
    if get_matrix_shape(metadata) != wanted:
        raise_error(
            "shape-mismatch",
            "T.gemm_sp: E does not fit A_sparse",
            call["E"].span,
            f"{metadata.buffer.name} is {show_shape(metadata.extent)}",
            secondary=(Label(a.buffer.span, f"{k} elements of {a.buffer.dtype} a row are stored here"),),
            help=f"allocate it as {show_shape(wanted)}: two bits of metadata for each element"
            + (", of float32 four" if a.buffer.dtype == types.FLOAT32 else ""),
        )
    return replace(op, metadata=metadata)


def _check_product(call: Call, left: str, sum_scopes: str = "C") -> Gemm:
    """Return the product of a call, dense or sparse; raises errors for memories, types and shapes that do not fit.
    `left` is the name of A's parameter, `sum_scopes` the row of `_SCOPES` for C.
    """
    in_tensor_memory = sum_scopes != "C"
    a = _read_matrix(call, left, "A of tcgen05" if in_tensor_memory else "")
    by_mma = call.name == "T.gemm" and not in_tensor_memory
    b, c = _read_matrix(call, "B", "B of mma" if by_mma else ""), _read_matrix(call, "C", sum_scopes)
    transpose_a, transpose_b = call.read_boolean("transpose_A"), call.read_boolean("transpose_B")
    _check_dtypes(call, a.buffer.dtype, b.buffer.dtype, c.buffer.dtype)
    if transpose_a and a.buffer.scope == "fragment":
        raise_error(
            "wrong-scope",
            f"{call.name}: a transposed A must be a shared tile",
            call["transpose_A"].span if call.is_given("transpose_A") else call[left].span,
            f"{a.buffer.name} is a fragment",
            secondary=(Label(a.buffer.span, "from here"),),
            help="remove transpose_A, or T.copy it to a shared tile",
        )
    if a.buffer.dtype.per_byte == 2 and (
        transpose_a or not transpose_b or "fragment" in (a.buffer.scope, b.buffer.scope)
    ):
        raise_error(
            "unsupported-operand",
            f"{call.name} of {a.buffer.dtype} needs both operands stored along K",
            call.span,
            "A must be a shared tile (M, K) and B one of (N, K)",
            secondary=tuple(Label(r.buffer.span, f"{show_shape(r.extent)}, {r.buffer.scope}") for r in (a, b)),
            help="store both along K and pass transpose_B=True, or T.copy them to tiles of int8 first",
        )
    a_m, a_k = get_matrix_shape(a)[:: -1 if transpose_a else 1]
    b_k, b_n = get_matrix_shape(b)[:: -1 if transpose_b else 1]
    c_m, c_n = get_matrix_shape(c)
    if left == "A_sparse":
        a_k *= 2  # only half of a row is stored
    if a_k != b_k:
        help_text = None
        if not call.is_given("transpose_B") and get_matrix_shape(b) == (c_n, a_k):
            help_text = f"pass transpose_B=True: {b.buffer.name} is stored as (N, K)"
        elif not call.is_given("transpose_A") and get_matrix_shape(a) == (b_k, c_m):
            help_text = f"pass transpose_A=True: {a.buffer.name} is stored as (K, M)"
        _refuse_shapes(call, "K", (left, a, a_k), ("B", b, b_k), help_text)
    if a_m != c_m:
        _refuse_shapes(call, "M", (left, a, a_m), ("C", c, c_m), None)
    if is_pair := "use_2cta" in call.arguments and call.read_boolean("use_2cta"):
        b_n *= 2
    if b_n != c_n and is_pair:
        raise_error(
            "bad-cta-pair",
            "with use_2cta each block has half of B's columns",
            call["B"].span,
            f"{b_n // 2} here, and C has {c_n}",
            secondary=(Label(call["use_2cta"].span, "uses two blocks"), Label(b.buffer.span, "from here")),
            help=f"allocate {b.buffer.name} for {c_n // 2} columns, and load the half of this block",
        )
    if b_n != c_n:
        _refuse_shapes(call, "N", ("B", b, b_n), ("C", c, c_n), None)
    waits_later = "wg_wait" in call.arguments and call["wg_wait"].value == -1
    return Gemm(
        a,
        b,
        c,
        clear_accum=not in_tensor_memory and call.read_boolean("clear_accum"),
        policy=cast(Policy, call.read_policy("policy")),
        transpose_A=transpose_a,
        transpose_B=transpose_b,
        paired=True if is_pair else None,
        wait="later" if waits_later else None,
        span=call.span,
    )


def _check_tcgen05_gemm(call: Call) -> Gemm:
    """Return the product of a call with C in tensor memory, with its barrier if it has one; raises an error if C is
    also A."""
    op = _check_product(call, "A", "C in tensor memory")
    if op.regions[0].buffer == op.regions[2].buffer:
        raise_error(
            "wrong-scope",
            f"{call.name}: C is also an operand",
            call["C"].span,
            secondary=(Label(call["A"].span, "and this"),),
            help="use another tile of T.alloc_tmem as C",
        )
    barrier = None if call["mbar"].value is None else as_barrier(call["mbar"], call.name)
    return replace(op, clear_when=as_expr(call["clear_accum"], BOOL), barrier=barrier)


def _read_matrix(call: Call, name: str, scopes: str = "") -> Region:
    """Return an operand's region; raises an error unless it is a matrix in a memory allowed for `scopes`, or for its
    name."""
    buffer = call.buffer(name)
    if buffer is not None and buffer.scope not in _SCOPES[scopes or name]:
        called = {"shared": "shared tile", "tmem": "tile of T.alloc_tmem"}
        wanted = " or ".join(f"a {called.get(s, s)}" for s in _SCOPES[scopes or name])
        where = {
            "global": "is in global memory", "shared": "is a shared tile", "fragment": "is a fragment",
            "tmem": "is in tensor memory",
        }  # fmt: skip
        raise_error(
            "wrong-scope",
            f"{call.name}: {name} must be {wanted}",
            call[name].span,
            f"{buffer.name} {where[buffer.scope]}",
            secondary=(Label(buffer.span, "from here"),),
            help=f"T.copy it to {wanted} first" if name != "C" else f"accumulate in {wanted}, then T.copy it out",
        )
    region = call.read_region(name)
    no_matrix = len(region.extent) < 2 or any(e != 1 for e in region.extent[:-2])
    if no_matrix or (region.is_whole and len(region.buffer.extents) != 2):
        raise_error(
            "shape-mismatch",
            f"{call.name}: {name} must be a matrix",
            call[name].span,
            f"this has shape {show_shape(region.extent)}",
        )
    return region


def _check_dtypes(call: Call, a: DType, b: DType, c: DType) -> None:
    """Raise an error for element types of A, B and C that no product has together."""
    if a != b and not {a, b} <= _MIXED_TYPES:
        buffers = ((key, call.buffer(key)) for key in ("A", "A_sparse", "B") if key in call.arguments)
        raise_error(
            "dtype-mismatch",
            f"{call.name}: A and B have different dtypes",
            call.span,
            f"A is {a}, B is {b}",
            secondary=tuple(Label(b.span, f"{key} is {b.dtype}") for key, b in buffers if b is not None),
            help="allocate both as one of the two: T.copy converts",
        )
    if a not in _ACCUMULATORS:
        known = ", ".join(d.name for d in _ACCUMULATORS)
        left = call["A_sparse" if "A_sparse" in call.arguments else "A"]
        instead = (
            "T.copy it to a tile of float16 or bfloat16 first" if a in types.NARROW_TYPES else f"supported: {known}"
        )
        raise_error("wrong-dtype", f"{call.name} cannot multiply {a}", left.span, f"this is {a}", help=instead)
    if c not in _ACCUMULATORS[a]:
        wanted = " or ".join(d.name for d in _ACCUMULATORS[a])
        raise_error(
            "wrong-dtype",
            f"{call.name} of {a} cannot accumulate in {c}",
            call["C"].span,
            f"this is {c}",
            help=f"allocate it as {wanted}",
        )


def _refuse_shapes(
    call: Call, dimension: str, one: tuple[str, Region, int], other: tuple[str, Region, int], help_text: str | None
) -> None:
    """Raise the error that two operands have different sizes along a dimension: M, N or K."""
    text = ", ".join(
        f"{name} is {show_shape(region.extent)} so {dimension} = {size}" for name, region, size in (one, other)
    )
    raise_error(
        "shape-mismatch",
        f"operands of {call.name} disagree on {dimension}",
        call.span,
        text,
        secondary=tuple(Label(r.buffer.span, f"{dimension} = {size} from here") for _, r, size in (one, other)),
        help=help_text,
    )


def _list_gemm_effects(op: Gemm) -> Effects:
    """Return the effects of a product: reads of A, B and metadata, and of C unless `clear_accum`; a write of C."""
    a, b, c, *metadata = op.regions
    return Effects((a, b, *metadata) if op.clear_accum else (a, b, c, *metadata), (c,))


def _evaluate_gemm(op: Gemm, env: Environment) -> None:
    """Compute the product in numpy and write C, in both blocks of a pair, each from its A and all columns of B. In a
    pair, each block holds its rows of A and half of the columns of B.
    """
    import numpy as np

    blocks = [env.peer(0), env.peer(1)] if op.is_paired else [env]
    b = op.regions[1]
    parts = [block.read(b).reshape(get_matrix_shape(b)) for block in blocks]
    right = np.concatenate(parts, axis=0 if op.transpose_B else 1)
    for block in blocks:
        _multiply_block(op, right, block)


def _multiply_block(op: Gemm, columns: NDArray[np.generic], env: Environment) -> None:
    """Compute the product of one block's A and these columns of B, add C unless it is cleared, and write C. Floats are
    float32 or, of float64 and integers, float64."""
    import numpy as np

    a, _, c, *metadata = op.regions
    # Products of 8-bit integers are exact in float64, which has a fast matrix product.
    small = a.buffer.dtype.is_float and a.buffer.dtype != types.FLOAT64
    wide = np.dtype(np.float32 if small else np.float64)
    left: NDArray[np.floating] = env.read(a).reshape(get_matrix_shape(a)).astype(wide)
    right: NDArray[np.floating] = columns.astype(wide)
    if a.buffer.dtype == types.FLOAT32:
        left, right = _truncate_to_tf32(left), _truncate_to_tf32(right)
    left = left.T if op.transpose_A else left
    if metadata:
        left = expand_rows(left, env.read(metadata[0]).reshape(get_matrix_shape(metadata[0])), a.buffer.dtype)
    if op.order is not None:
        left = left[:, [accumulated_depth_order(place) for place in range(left.shape[1])]]
    product = left @ (right.T if op.transpose_B else right)
    initialises = op.clear_accum if op.clear_when is None else env.scalar(op.clear_when)
    if not initialises:
        product = product + env.read(c).reshape(get_matrix_shape(c)).astype(wide)
    env.write(c, product.reshape(c.extent))


def _truncate_to_tf32(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return float32 values with the lowest 13 bits zero, as tf32: tensor cores ignore them (PTX ISA, mma)."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


_FACTORS = (*map(Parameter, "ABC"), Parameter("transpose_A", False), Parameter("transpose_B", False))
_SPARSE_FACTORS = (
    *map(Parameter, ("A_sparse", "E", "B", "C")),
    Parameter("transpose_A", False),
    Parameter("transpose_E", False),
    Parameter("transpose_B", False),
)
_POLICY, _CLEAR = Parameter("policy", WarpPolicy("square")), Parameter("clear_accum", False)
_UNUSED_POLICY = replace(_POLICY, hint="the tensor cores divide C themselves")
_K_PACK = Parameter("k_pack", 1, hint="it is for the matrix units of another vendor")
_WAIT = Parameter("wg_wait", 0, keyword_only=True)
_INSERTED_WAIT = replace(_WAIT, hint="tilec inserts the wait where the result is needed")
_BARRIER, _PAIRED = Parameter("mbar", None), Parameter("use_2cta", False, keyword_only=True)

define_operation(
    Gemm,
    _list_gemm_effects,
    _evaluate_gemm,
    Spelling(
        Signature("T.gemm", (*_FACTORS, _POLICY, _CLEAR, _K_PACK, _WAIT, _BARRIER, ANNOTATIONS)),
        """C += op(A) · op(B), or C = op(A) · op(B) with clear_accum.

        A is (M, K), a shared tile or a fragment; B is (K, N), a shared tile or, for mma.sync, a fragment; C is
        (M, N), a fragment. With transpose_A, A is (K, M), and a fragment is copied to a shared tile first; with
        transpose_B, B is (N, K).
        Dense shared tiles may also be parts of tiles that begin at a multiple of 16 bytes of a row; wgmma needs
        parts that begin at multiples of 8 rows, and at 32 bytes along K or at whole panels of 128 bytes across.
        A and B are float16 (C float32 or float16), bfloat16 (C float32), float32 (C float32; the tensor cores
        use the leading 19 bits, which is tf32), float64 (C float64), int8 or uint8 (C int32), int4 or uint4 (C
        int32; both in shared memory and along K), or on targets that have them 8-bit floats, also mixed (C
        float32 or float16). `policy` sets how warps share C.

        C may also be a T.alloc_tmem tile, in the tensor memory of sm_100a: only products of one T.Pipelined
        loop may add to it, it is cleared before the loop or by `clear_accum=k == 0` in its first iteration, and
        T.copy to a fragment reads it after the loop. In a kernel with explicit barriers, `mbar` makes it
        T.tcgen05_gemm.
        """,
        _check_gemm,
    ),
    Spelling(
        Signature("T.gemm_sp", (*_SPARSE_FACTORS, _POLICY, _CLEAR, _K_PACK, _INSERTED_WAIT, ANNOTATIONS)),
        """C += op(A) · op(B), where A stores two of each four adjacent elements along K and the others are 0.

        As T.gemm, but `A_sparse` is (M, K / 2), and the shared tile `E` holds the positions of its elements:
        (M, K / n) of an integer type of n bits, for float32 (M, 2 K / n). With transpose_E it is transposed
        first, and a B in a fragment is copied to a shared tile. A row of E is a string of bits, the
        lowest first, with four bits for each four elements along K: the lower two are the position of the first
        stored element, the upper two that of the second, which is larger. float32 stores one of two adjacent
        elements, and its four bits are 0100 for the first, 1110 for the second. A is float16, bfloat16,
        float32, int8, uint8 or an 8-bit float.
        """,
        _check_sparse_gemm,
    ),
    Spelling(
        Signature("T.wgmma_gemm", (*_FACTORS, _POLICY, _CLEAR, ANNOTATIONS)),
        """Begin C += op(A) · op(B) by wgmma, as T.gemm would, without waiting: T.wait_wgmma waits for it.

        tilec adds a wait where threads use C; when A and B may be overwritten is the kernel's task. T.gemm with
        wg_wait=-1 is the same where the target has wgmma.
        """,
        lambda call: replace(_check_product(call, "A"), wait="wgmma"),
    ),
    Spelling(
        Signature(
            "T.tcgen05_gemm",
            (*_FACTORS, _UNUSED_POLICY, _CLEAR, replace(_BARRIER, keyword_only=True), _PAIRED, ANNOTATIONS),
        ),
        """Begin C += op(A) · op(B) by tcgen05.mma, C a T.alloc_tmem tile, without waiting.

        B is a shared tile, and A a shared tile or a T.alloc_tmem tile that T.copy fills from a fragment. One of
        the threads that execute this issues it. When it and all earlier products of this thread are complete,
        the tensor cores arrive once at `mbar`; without `mbar`, T.tcgen05_mma_arrive does that. `clear_accum`
        may depend on the iteration: C = op(A) · op(B) where it holds.

        With use_2cta the tensor cores of both blocks of a cluster compute it, issued by a thread of the first
        block: each block has its rows of A and of C, and half of B's columns, the first block the first half.
        They arrive at `mbar` in both blocks.
        """,
        _check_tcgen05_gemm,
    ),
)


@attach_facet(Gemm, "agrees")
def verify_gemm(op: Gemm) -> Iterator[str]:
    """Yield a message where operands of a product disagree in shape or type, or attributes do not fit its memories."""
    a, b, c, *metadata = op.regions
    for region in op.regions:
        if len(region.extent) < 2 or any(e != 1 for e in region.extent[:-2]):
            yield f"{region.buffer.name} {show_shape(region.extent)} is not a matrix"
            return
    (m, k), (of_b, n) = (
        get_matrix_shape(a)[:: -1 if op.transpose_A else 1],
        get_matrix_shape(b)[:: -1 if op.transpose_B else 1],
    )
    stored = k * 2 if metadata else k  # half of a sparse A is stored
    if (m, n * (2 if op.paired else 1), stored) != (*get_matrix_shape(c), of_b):
        shapes = ", ".join(f"{r.buffer.name} is {show_shape(r.extent)}" for r in (a, b, c))
        yield f"operands disagree: {shapes}"
    left, right = a.buffer.dtype, b.buffer.dtype
    if (left != right and not {left, right} <= _MIXED_TYPES) or left not in _ACCUMULATORS:
        yield f"there is no product of {left} and {right}"
    elif c.buffer.dtype not in _ACCUMULATORS[left]:
        yield f"a product of {left} is not accumulated in {c.buffer.dtype}"
    elif left.per_byte == 2 and (
        op.transpose_A or not op.transpose_B or "fragment" in (a.buffer.scope, b.buffer.scope)
    ):
        yield f"{left} must be in shared memory and stored along K"
    if metadata and (
        left.name not in SPARSE_DTYPES
        or metadata[0].buffer.dtype not in METADATA_DTYPES
        or get_matrix_shape(metadata[0]) != (m, count_metadata_columns(k, left, metadata[0].buffer.dtype))
    ):
        yield f"{metadata[0].buffer.name} does not fit as metadata of {k} elements a row of {left}"
    yield from _verify_scopes(op)


def _verify_scopes(op: Gemm) -> Iterator[str]:
    """Yield a message where leader, barrier and the like do not fit the memory of A, B and C. They belong to C in
    tensor memory alone."""
    a, b, c, *metadata = (region.buffer for region in op.regions)
    by_tensor_memory = c.scope == "tmem"
    given = [name for name in ("barrier", "clear_when", "held", "leader", "paired") if getattr(op, name) is not None]
    if by_tensor_memory != (op.leader is not None and op.clear_when is not None):
        yield "leader and clear_when need C in tensor memory"
    elif not by_tensor_memory and (given or a.scope == "tmem"):
        yield f"{given[0] if given else a.name} needs C in tensor memory"
    if by_tensor_memory and (op.clear_accum or op.wait or metadata or a == c or "fragment" in (a.scope, b.scope)):
        yield "C in tensor memory needs dense A and B, and clear_when in place of clear_accum"
    if op.transpose_A and a.scope == "fragment":
        yield f"transpose_A needs a shared tile; {a.name} is a fragment"
