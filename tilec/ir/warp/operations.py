"""The operations of a role that move and compute, and the structure around them."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ir.warp.memory import Barrier, Cursor, TensorMap
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in a software pipeline an operation stands: in which time step of which part, and in which iteration of the
    source's loop, as the value of its variable; which of that loop's statements it is a part of, counted as they are
    written; and where the pipeline stands in the one around it."""

    part: Literal["prologue", "steady", "epilogue"]
    step: int
    var: tile.Var
    iteration: tile.Expr | None = None
    around: Moment | None = None
    place: int | None = None

    def within(self, moment: Moment) -> Moment:
        """This moment in a pipeline that stands at another one."""
        return replace(self, around=moment if self.around is None else self.around.within(moment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`cursors` gives the position of each ring that the operation's tiles belong to; `moment` is there to be read, and
    means nothing to any pass; the verifier alone asks it for the order of the text."""

    cursors: tuple[Cursor, ...] = ()
    moment: Moment | None = field(default=None, compare=False)
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Elementwise(Operation):
    """A parallel nest, each thread sweeping its registers of `layout`. With `block` its stores go to the tiles of that
    block of the cluster."""

    nest: tile.Parallel
    layout: Fragment
    block: tile.Expr | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """For the element at `variables` of a tile, the one of a tensor at `indices`; zero unless `condition` holds."""

    buffer: tile.Buffer
    variables: tuple[tile.Var, ...]
    indices: tuple[tile.Expr, ...]
    condition: tile.Expr


@dataclass(frozen=True, slots=True)
class CpAsync(Operation):
    """Global to shared by cp.async in chunks of `width` bytes (4, 8 or 16), zeros for what lies outside the tensor. Of
    a gather, neighbours in a chunk are neighbours in the tensor."""

    source: tile.Region | Gather
    destination: tile.Region
    layout: Fragment
    width: int


@dataclass(frozen=True, slots=True)
class FourRows:
    """Four rows of a matrix, each by its own index, beside the rows of a tile from `at` on, a multiple of four."""

    rows: tuple[tile.Expr, ...]
    at: tile.Expr


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """Global to shared by TMA, signalling the full barrier of the ring. `start` is the region's first index; of an
    im2col map it is the first place, as the pixel there, and `tap` where from there the filter looks.

    With a `barrier` of the kernel's own it signals that; the role's thread `leader` issues it, and first announces the
    bytes, unless the kernel `announces` them itself. The barrier is that of the cluster's `block`, or where that is
    None of this one.

    Where blocks of the cluster that differ along the axes `shared` load the same tile, each loads a slice of it, of the
    map's box along dimension `sliced`, for all of them. With `four` the map's box is one row, and of `start` only the
    column counts.
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


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """Shared to global by TMA, issued by the role's first thread, as one bulk group. With `atomic` every element is
    combined with what the tensor holds.

    With several `parts` the first thread of each of so many warpgroups issues one: of every `parts` blocks of
    `PART_ROWS` rows of the tile, that of its own number, along dimension `rows` of the map's box. `four` is as
    in `TmaLoad`.
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
    """The columns from `column` on of an accumulator fragment to a 16-bit shared tile by stmatrix, converting to the
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
class Mma(Operation):
    """C += op(A)·op(B) by mma.sync, A and B by ldmatrix from shared memory, parts of tiles also; either may be a
    fragment. With `metadata` A is half of a sparse matrix, and that, in shared memory, says where its elements belong.
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
    """C += op(A)·op(B) as one wgmma group, B and mostly A in shared memory, parts of tiles also, A may be a fragment:
    complete only after a wait. `metadata` as in `Mma`. With `waits_later` the kernel says itself when its tiles may be
    handed on."""

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
    """What the elements of A and B are multiplied with: `a` and `b` in tensor memory have one scale for `a_step` and
    `b_step` elements along K, where the tiles begin at `start`. `types` are those of A and B, `kind` that of the
    product, as the ISA calls them."""

    a: tile.Buffer
    b: tile.Buffer
    start: tile.Expr
    a_step: int
    b_step: int
    types: tuple[str, str]
    kind: str


@dataclass(frozen=True, slots=True)
class TensorMma(Operation):
    """C += op(A)·op(B) by tcgen05.mma, A in shared or tensor memory, B in shared and C in tensor memory, or C =
    op(A)·op(B) where `clear` holds. One thread asks for it, of the role's the one numbered `leader`; that the tensor
    cores are done, they say themselves (`by_tensor_cores`, `TensorArrive`). `paired`: those of a pair of blocks, of
    which each has rows of its own and half of B's columns."""

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
    """Scales from shared to tensor memory, in order with the products that the role's thread `leader` asks for."""

    source: tile.Buffer
    destination: tile.Buffer
    leader: int


@dataclass(frozen=True, slots=True)
class TensorLoad(Operation):
    """Columns of a tile in tensor memory to registers, from one on and as many as the fragment has: there after a
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
    through `scratch` in shared memory where the row crosses warps."""

    source: tile.Buffer
    destination: tile.Buffer
    kind: Literal["sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"]
    dim: int
    clear: bool
    scratch: tile.Buffer | None


# ---- structure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let(Operation):
    """Gives a scalar its value; nothing changes it afterwards."""

    var: tile.Var
    value: tile.Expr


@dataclass(frozen=True, slots=True)
class Phase:
    """What the iterations of a loop do while its variable is less than `until`."""

    until: tile.Expr
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Following:
    """What a loop's variable is in the next iteration, and whether there is one: what the iteration has found out by
    its end."""

    value: tile.Var
    is_there: tile.Var


@dataclass(frozen=True, slots=True)
class Loop(Operation):
    """`for var in range(start, stop, step)`, run by all threads of the role alike. `part` says which piece of a
    software pipeline it is. Before the iterations that run `body` are those of each of the `phases` in turn, as many as
    there are. With `following` there is a first iteration at all events, and each one says how it goes on; `step` then
    means nothing, but the variable stays below `stop`."""

    var: tile.Var
    start: tile.Expr
    stop: tile.Expr
    step: int
    body: tuple[Operation, ...]
    part: Literal["", "steady"] = ""
    phases: tuple[Phase, ...] = ()
    following: Following | None = None

    @property
    def bodies(self) -> tuple[tuple[Operation, ...], ...]:
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
    """The thread gives up, and the grid with it. Under a `Branch` whose condition may differ between threads."""


@dataclass(frozen=True, slots=True)
class Branch(Operation):
    """A condition that all threads of the role agree on, unless it only guards a `Trap`. A `guard` protects a piece of
    a `Pipeline`: it holds where the trip count is at least `least`."""

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
