"""The operations of a role that move and compute, and the structure around them."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ir.warp_nodes.memory import Barrier, Cursor, TensorMap
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class PipelinePosition:
    """The position of an operation in a software pipeline, for readers and for the verifier's order of the text. `part`
    and `step` are the part of the pipeline and the time step in it; `iteration` is the value of the source loop's
    variable `var`; `place` is the index of the source statement in that loop; `around` is the position of the pipeline
    in the one around it."""

    part: Literal["prologue", "steady", "epilogue"]
    step: int
    var: tile.Var
    iteration: tile.Expr | None = None
    around: PipelinePosition | None = None
    place: int | None = None

    def within(self, moment: PipelinePosition) -> PipelinePosition:
        """Return this position with `moment` as the position of the outermost pipeline around it."""
        return replace(self, around=moment if self.around is None else self.around.within(moment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The base of all operations. `cursors` are the positions in the rings that the operation's tiles belong to. No
    pass depends on `moment`; only the verifier uses it."""

    cursors: tuple[Cursor, ...] = ()
    moment: PipelinePosition | None = field(default=None, compare=False)
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Elementwise(Operation):
    """A parallel nest, each thread sweeping its registers of `layout`. With `block` its stores go to the tiles of that
    block of the cluster. With `copy_bytes` each thread copies its elements by cp.async of so many bytes; the kernel
    orders these copies among themselves."""

    nest: tile.Parallel
    layout: Fragment
    block: tile.Expr | None = None
    copy_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Gather:
    """For the element at `variables` of a tile, the element of a tensor at `indices`; zero unless `condition` holds."""

    buffer: tile.Buffer
    variables: tuple[tile.Var, ...]
    indices: tuple[tile.Expr, ...]
    condition: tile.Expr


@dataclass(frozen=True, slots=True)
class CpAsync(Operation):
    """Global to shared by cp.async in chunks of `width` bytes (4, 8 or 16), with zeros for elements out of bounds. In a
    gather, neighbours in a chunk are neighbours in the tensor."""

    source: tile.Region | Gather
    destination: tile.Region
    layout: Fragment
    width: int


@dataclass(frozen=True, slots=True)
class FourRows:
    """Four rows of a matrix, each by its own index (TMA gather4 and scatter4), for the rows of a tile from `at` on, a
    multiple of four."""

    rows: tuple[tile.Expr, ...]
    at: tile.Expr


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """Global to shared by TMA, signalling the full barrier of the ring. `start` is the region's first index; of an
    im2col map it is the first position, as its pixel, and `tap` the offset of the filter's element from there.

    With a `barrier` of the kernel's own it signals that one; the role's thread `leader` issues it, and first announces
    the bytes, unless the kernel does so itself (not `announces`). The barrier belongs to the cluster's `block`, or
    where that is None to this block.

    Where blocks of the cluster that differ along the axes `shared` load the same tile, each loads one slice, along
    dimension `sliced` of the map's box, and multicasts it. With `four` the map's box is one row, and of `start` only
    the column counts. With `panels` only so many of the tile are loaded, from the one that begins at `column`
    on.
    """

    map: TensorMap
    start: tuple[tile.Expr, ...]
    destination: tile.Buffer
    tap: tuple[tile.Expr, ...] = ()
    barrier: Barrier | None = None
    leader: int = 0
    announces: bool = True
    shared: str = ""
    sliced: int = 0
    four: FourRows | None = None
    block: tile.Expr | None = None
    column: tile.Expr | None = None
    panels: int = 0


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """Shared to global by TMA, issued by the role's first thread, as one bulk group. With `atomic` every element is
    combined with the tensor's.

    With several `parts` the first thread of each of so many warpgroups issues a store: of every `parts` blocks of
    `PART_ROWS` rows of the tile, the one with the warpgroup's number, along dimension `rows` of the map's box. `four`
    is as in `TmaLoad`.
    """

    map: TensorMap
    start: tuple[tile.Expr, ...]
    source: tile.Buffer
    atomic: Literal["", "add", "min", "max"] = ""
    parts: int = 1
    rows: int = 0
    four: FourRows | None = None


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """The columns from `column` on of an accumulator fragment to a 16-bit shared tile by stmatrix, converted to the
    tile's type."""

    source: tile.Buffer
    destination: tile.Buffer
    column: int = 0


@dataclass(frozen=True, slots=True)
class LoadMatrix(Operation):
    """A box of a 16-bit shared tile to a fragment that lies in blocks of 8 × 8, by ldmatrix."""

    source: tile.Region
    destination: tile.Buffer


@dataclass(frozen=True, slots=True)
class TransposeMatrix(Operation):
    """The transpose of a shared tile of 8-bit or 16-bit elements in another one, by ldmatrix and stmatrix. The role's
    warps divide the tile evenly; with several copies of `destination`, those of a warpgroup do. An instruction
    transposes `rows` rows of 16 bytes. With `accumulated`, the depth is in the order of `accumulated_depth_order`."""

    source: tile.Buffer
    destination: tile.Buffer
    warps: int
    rows: int
    accumulated: bool = False


@dataclass(frozen=True, slots=True)
class Mma(Operation):
    """C += op(A)·op(B) by mma.sync, A and B by ldmatrix from shared memory, also parts of tiles; either may be a
    fragment. With `metadata`, a shared tile, A is the non-zero half of a sparse matrix, and the metadata its positions.
    With `nibbles` a byte of A and B is two elements."""

    a: tile.Region
    b: tile.Region
    c: tile.Buffer
    transpose_a: bool
    transpose_b: bool
    clear: bool
    metadata: tile.Buffer | None = None
    nibbles: Literal["", "s4", "u4"] = ""


@dataclass(frozen=True, slots=True)
class Wgmma(Operation):
    """C += op(A)·op(B) as one wgmma group, complete only after a wait. B and mostly A are in shared memory, also parts
    of tiles; A may be a fragment. `metadata` as in `Mma`. With `waits_later` the kernel itself decides when its tiles
    may be released."""

    a: tile.Region
    b: tile.Region
    c: tile.Buffer
    transpose_a: bool
    transpose_b: bool
    clear: bool
    metadata: tile.Buffer | None = None
    waits_later: bool = False


@dataclass(frozen=True, slots=True)
class Scales:
    """Scale factors of A and B: `a` and `b` in tensor memory have one scale for `a_step` and `b_step` elements along
    K, of tiles that begin at `start`. `types` are the types of A and B, `kind` that of the product, as the ISA calls
    them."""

    a: tile.Buffer
    b: tile.Buffer
    start: tile.Expr
    a_step: int
    b_step: int
    types: tuple[str, str]
    kind: str


@dataclass(frozen=True, slots=True)
class TensorMma(Operation):
    """C += op(A)·op(B) by tcgen05.mma, A in shared or tensor memory, B in shared and C in tensor memory; or C =
    op(A)·op(B) where `clear` holds. One thread issues it, number `leader` of the role; the tensor cores themselves
    signal its completion (`by_tensor_cores`, `TensorArrive`). `paired`: by the tensor cores of a pair of blocks, of
    which each has its own rows of A and half of B's columns."""

    a: tile.Buffer
    b: tile.Buffer
    c: tile.Buffer
    transpose_a: bool
    transpose_b: bool
    clear: tile.Expr
    leader: int | None = None
    scales: Scales | None = None
    paired: bool = False


@dataclass(frozen=True, slots=True)
class TensorCopy(Operation):
    """Scales from shared to tensor memory, in order with the products issued by the role's thread `leader`. Where
    products are paired, each block of the pair copies its own."""

    source: tile.Buffer
    destination: tile.Buffer
    leader: int


@dataclass(frozen=True, slots=True)
class TensorLoad(Operation):
    """Columns of a tile in tensor memory, from `column` on, to a fragment with that many: there after a
    `TensorWait`."""

    source: tile.Buffer
    destination: tile.Buffer
    column: tile.Expr


@dataclass(frozen=True, slots=True)
class TensorStore(Operation):
    """Registers to columns of a tile in tensor memory: done after a `TensorWait`."""

    source: tile.Buffer
    destination: tile.Buffer
    column: tile.Expr


@dataclass(frozen=True, slots=True)
class Reduce(Operation):
    """Reduce one dimension of a fragment, or for `dim` −1 the parts that threads have of each element of a reducer,
    through `scratch` in shared memory where the row crosses warps. With `propagates_nan` the extreme of floats with a
    NaN among them is NaN."""

    source: tile.Buffer
    destination: tile.Buffer
    kind: Literal["sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"]
    dim: int
    clear: bool
    scratch: tile.Buffer | None
    propagates_nan: bool = False


@dataclass(frozen=True, slots=True)
class Scan(Operation):
    """Combine each element of a fragment with all before it along a dimension, in `reverse` with all behind it, through
    `scratch` in shared memory where the row crosses warps. Both fragments have the same layout."""

    source: tile.Buffer
    destination: tile.Buffer
    kind: Literal["sum", "max"]
    dim: int
    reverse: bool
    scratch: tile.Buffer | None


# ---- structure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let(Operation):
    """Gives a scalar its value; nothing changes it afterwards."""

    var: tile.Var
    value: tile.Expr


@dataclass(frozen=True, slots=True)
class Phase:
    """The body of a loop's iterations while its variable is less than `until`."""

    until: tile.Expr
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class NextIteration:
    """The value of a loop's variable in the next iteration, and whether there is one, both computed by the
    iteration."""

    value: tile.Var
    is_there: tile.Var


@dataclass(frozen=True, slots=True)
class Loop(Operation):
    """`for var in range(start, stop, step)`, run by all threads of the role alike. `part` marks the steady state of a
    software pipeline. The iterations of each of the `phases` come in turn, then those that run `body`. With `following`
    there always is a first iteration, and each one computes the next; `step` then is meaningless, but the variable
    stays below `stop`."""

    var: tile.Var
    start: tile.Expr
    stop: tile.Expr
    step: int
    body: tuple[Operation, ...]
    part: Literal["", "steady"] = ""
    phases: tuple[Phase, ...] = ()
    following: NextIteration | None = None

    @property
    def bodies(self) -> tuple[tuple[Operation, ...], ...]:
        """Return the operation lists of the loop's phases, then its body."""
        return *(phase.body for phase in self.phases), self.body


@dataclass(frozen=True, slots=True)
class Forever(Operation):
    """Repeats its body until a `Break`."""

    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Break(Operation):
    """Leave the innermost `Loop` or `Forever`, at the end of one of its iterations: what would follow is not run
    then."""


@dataclass(frozen=True, slots=True)
class Trap(Operation):
    """Abort the grid, by a thread. Under a `Branch` whose condition may differ between threads."""


@dataclass(frozen=True, slots=True)
class Branch(Operation):
    """A condition that is the same in all threads of the role, unless it only guards a `Trap`. A `guard` protects a
    piece of a `Pipeline`: it holds where the trip count is at least `least`."""

    condition: tile.Expr
    then: tuple[Operation, ...]
    orelse: tuple[Operation, ...] = ()
    part: Literal["", "guard"] = ""
    least: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline(Operation):
    """A software pipeline whose trip count is known only at run time: its prologue in guards, its steady state, its
    epilogue in guards. `stages` is the number of its last stage in this role."""

    var: tile.Var
    stages: int
    body: tuple[Operation, ...]
