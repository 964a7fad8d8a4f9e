"""Warp IR: what each warp role does, in issue order, with every wait, arrival and fence in place.

A program has one role (all warps run the same code) or several (warp specialisation). Operations are still
tile-sized, but each is one hardware mechanism: a TMA load, a wgmma group, an elementwise sweep in a known layout.

Tiles that have several versions in flight are addressed through *cursors*: a position in a ring, held in registers,
advanced once per logical iteration. Two statements of one role that work on different iterations have different
cursors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Literal

from tilec.ir.affine import affine
from tilec.ir.groups import TENSOR_LANES
from tilec.ir.layout import Fragment, SharedLayout
from tilec.ir.tile import Binary, Buffer, Const, Expr, Extent, Load, Parallel, Region, Var, substitute, walk_expr
from tilec.options import Arrivals
from tilec.records import dataclass
from tilec.source import NOWHERE, Span

MBARRIER_BYTES = 8

PART_ROWS = 64
"""Rows of a tile that a warpgroup has together, as wgmma gives them to it."""

SMALL_STRIDE = 128
"""Bytes between versions of a tile that is no larger, as TMA wants them aligned: it has no bank swizzle to begin
anew."""

FIRST_TURN = 3
"""The first named barrier for turns: 0 is the whole block's, 1 and 2 those of two roles."""

FIRST_APART = 6
"""The first named barrier for warpgroups that meet apart: at most three take turns."""


def arrivals_of(warps: int, by: Arrivals) -> int:
    """How often so many warps arrive at an mbarrier to say one thing."""
    return warps if by == "warp" else 32 * warps


@dataclass(frozen=True, slots=True)
class Ring:
    """`depth` versions of some shared tiles that are filled and freed together.

    With mbarriers (`arrivals` > 0) one role fills it for others: `full` completes with `fills` arrivals of those who
    fill the version, and the `bytes` that TMA copies into it; `empty` with `arrivals` of those who have released it.
    A role of one thread arrives once, any other one as `arrivals_of` says. Without, all that touch it are of one role,
    which orders them by waits and barriers.

    `shared` has the axes of the cluster along which blocks load some of the tiles together (`ir.multicast`): then a
    version is released to all who fill it, and `arrivals` counts those of all whom this block fills it for.

    `paired`: the tensor cores of a pair of blocks work on it together, asked by a thread of the first. What both blocks
    fill and threads of both release counts at the first one's barriers, `bytes` and `arrivals` of both; what the tensor
    cores fill and release they say to both blocks.

    `heard_by`: its versions are answers to what a thread of the cluster's first block asks the machine (`TryCancel`),
    and so many blocks of the cluster hear each. A version comes to all of them, each of which announces its `bytes` to
    itself, and all release it to the first one, which counts the `arrivals` of all.
    """

    name: str
    depth: int
    buffers: tuple[str, ...]
    bytes: int = 0
    arrivals: int = 0
    fills: int = 1
    shared: tuple[str, ...] = ()
    by: Arrivals = "warp"
    paired: bool = False
    heard_by: int = 0

    @property
    def has_barriers(self) -> bool:
        return self.arrivals > 0

    @property
    def crosses_blocks(self) -> bool:
        """Whether other blocks signal its barriers."""
        return bool(self.shared) or self.paired or self.heard_by > 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A role's position in a ring. `name` is unique in the program. Where a kernel says itself which version it means,
    `index` is that."""

    name: str
    ring: str
    index: Expr | None = None


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A shared buffer with all its versions: `depth` of them, `stride` bytes apart, the first at `offset`. One that is
    `over_rings` lives when the rings are done with, and may lie in their memory."""

    buffer: Buffer
    layout: SharedLayout
    depth: int = 1
    offset: int = 0
    over_rings: bool = False

    @property
    def stride(self) -> int:
        if self.depth == 1:
            return self.layout.bytes
        unit = SMALL_STRIDE if self.layout.bytes <= SMALL_STRIDE else 1024
        return -(-self.layout.bytes // unit) * unit

    @property
    def bytes(self) -> int:
        return self.stride * self.depth

    def meets(self, other: SharedTile) -> bool:
        """Whether both have some byte."""
        return self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A buffer in tensor memory with all its versions: `depth` of them, `columns` apart, the first from column `offset`
    of the block's allocation on."""

    buffer: Buffer
    columns: int
    depth: int = 1
    offset: int = 0

    @property
    def per_column(self) -> int:
        """How many elements of a row share a column: several where the tile is a factor, not a sum."""
        rows, width = self.buffer.shape
        return -(-rows // TENSOR_LANES) * width // self.columns


@dataclass(frozen=True, slots=True)
class Corners:
    """What an im2col descriptor is about: a filter is at all places, `stride` pixels apart, from `lower` pixels before
    an image's first one up to `upper` pixels after its last one, in both directions."""

    lower: int
    upper: int
    stride: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor parameter: boxes of `box` elements in the order of the tensor's axes, bank swizzle in bytes.
    With `corners` it is one for im2col, and a box so many places of so many channels."""

    name: str
    tensor: Buffer
    box: tuple[int, ...]
    swizzle: int
    corners: Corners | None = None


@dataclass(frozen=True, slots=True)
class Barriers:
    """mbarriers that the kernel itself arrives at and waits for: one for each count, which is that of its arrivals."""

    name: str
    counts: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One of several `Barriers`."""

    name: str
    index: Expr


# ---- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in a software pipeline an operation stands: in which time step of which part, and in which iteration of the
    source's loop, as the value of its variable; and where the pipeline stands in the one around it."""

    part: Literal["prologue", "steady", "epilogue"]
    step: int
    var: Var
    iteration: Expr | None = None
    around: Moment | None = None

    def within(self, moment: Moment) -> Moment:
        """This moment in a pipeline that stands at another one."""
        return replace(self, around=moment if self.around is None else self.around.within(moment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`cursors` gives the position of each ring that the operation's tiles belong to; `moment` is there to be read, and
    means nothing to any pass."""

    cursors: tuple[Cursor, ...] = ()
    moment: Moment | None = field(default=None, compare=False)
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Elementwise(Operation):
    """A parallel nest, each thread sweeping its registers of `layout`. With `block` its stores go to the tiles of that
    block of the cluster."""

    nest: Parallel
    layout: Fragment
    block: Expr | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """For the element at `variables` of a tile, the one of a tensor at `indices`; zero unless `condition` holds."""

    buffer: Buffer
    variables: tuple[Var, ...]
    indices: tuple[Expr, ...]
    condition: Expr


@dataclass(frozen=True, slots=True)
class CpAsync(Operation):
    """Global to shared by cp.async in chunks of `width` bytes (4, 8 or 16), zeros for what lies outside the tensor. Of
    a gather, neighbours in a chunk are neighbours in the tensor."""

    source: Region | Gather
    destination: Region
    layout: Fragment
    width: int


@dataclass(frozen=True, slots=True)
class FourRows:
    """Four rows of a matrix, each by its own index, beside the rows of a tile from `at` on, a multiple of four."""

    rows: tuple[Expr, ...]
    at: Expr


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """Global to shared by TMA, signalling the full barrier of the ring. `start` is the region's first index; of an
    im2col map it is the first place, as the pixel there, and `tap` where from there the filter looks.

    With a `barrier` of the kernel's own it signals that; the role's thread `leader` issues it, and first announces the
    bytes, unless the kernel `announces` them itself.

    Where blocks of the cluster that differ along the axes `shared` load the same tile, each loads a slice of it, of the
    map's box along dimension `sliced`, for all of them. With `four` the map's box is one row, and of `start` only the
    column counts.
    """

    map: TensorMap
    start: tuple[Expr, ...]
    destination: Buffer
    tap: tuple[Expr, ...] = ()
    barrier: Barrier | None = None
    leader: int = 0
    announces: bool = True
    shared: str = ""
    sliced: int = 0
    four: FourRows | None = None


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """Shared to global by TMA, issued by the role's first thread, as one bulk group. With `atomic` every element is
    combined with what the tensor holds.

    With several `parts` the first thread of each of so many warpgroups issues one: of every `parts` blocks of
    `PART_ROWS` rows of the tile, that of its own number, along dimension `rows` of the map's box. `four` is as
    in `TmaLoad`.
    """

    map: TensorMap
    start: tuple[Expr, ...]
    source: Buffer
    atomic: Literal["", "add", "min", "max"] = ""
    parts: int = 1
    rows: int = 0
    four: FourRows | None = None


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """The columns from `column` on of an accumulator fragment to a 16-bit shared tile by stmatrix, converting to the
    tile's type."""

    source: Buffer
    destination: Buffer
    column: int = 0


@dataclass(frozen=True, slots=True)
class Mma(Operation):
    """C += op(A)·op(B) by mma.sync, B and mostly A by ldmatrix from shared memory; A may be a fragment. With `metadata`
    A is half of a sparse matrix, and that, in shared memory, says where its elements belong. With `nibbles` a byte of A
    and B is two elements."""

    a: Buffer
    b: Buffer
    c: Buffer
    transpose_a: bool
    transpose_b: bool
    clear: bool
    metadata: Buffer | None = None
    nibbles: Literal["", "s4", "u4"] = ""


@dataclass(frozen=True, slots=True)
class Wgmma(Operation):
    """C += op(A)·op(B) as one wgmma group, B and mostly A in shared memory, A may be a fragment: complete only after a
    wait. `metadata` as in `Mma`. With `waits_later` the kernel says itself when its tiles may be handed on."""

    a: Buffer
    b: Buffer
    c: Buffer
    transpose_a: bool
    transpose_b: bool
    clear: bool
    metadata: Buffer | None = None
    waits_later: bool = False


@dataclass(frozen=True, slots=True)
class Scales:
    """What the elements of A and B are multiplied with: `a` and `b` in tensor memory have one scale for `a_step` and
    `b_step` elements along K, where the tiles begin at `start`. `types` are those of A and B, `kind` that of the
    product, as the ISA calls them."""

    a: Buffer
    b: Buffer
    start: Expr
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

    a: Buffer
    b: Buffer
    c: Buffer
    transpose_a: bool
    transpose_b: bool
    clear: Expr
    leader: int | None = None
    scales: Scales | None = None
    paired: bool = False


@dataclass(frozen=True, slots=True)
class TensorCopy(Operation):
    """Scales from shared to tensor memory, in order with the products that the role's thread `leader` asks for."""

    source: Buffer
    destination: Buffer
    leader: int


@dataclass(frozen=True, slots=True)
class TensorLoad(Operation):
    """Columns of a tile in tensor memory to registers, from one on and as many as the fragment has, waited for."""

    source: Buffer
    destination: Buffer
    column: Expr


@dataclass(frozen=True, slots=True)
class TensorStore(Operation):
    """Registers to columns of a tile in tensor memory, waited for."""

    source: Buffer
    destination: Buffer
    column: Expr


@dataclass(frozen=True, slots=True)
class Reduce(Operation):
    """Reduce one dimension of a fragment, or for `dim` −1 the parts that threads have of each element of a reducer,
    through `scratch` in shared memory where the row crosses warps."""

    source: Buffer
    destination: Buffer
    kind: Literal["sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"]
    dim: int
    clear: bool
    scratch: Buffer | None


# ---- synchronisation: placed by passes.sync, except the ring protocol, which follows from the roles, and what a kernel
# ---- asks for itself -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Await(Operation):
    """Nothing by itself: a place where all that fills the named tiles has completed, and with `readers` all that reads
    them, as far as the thread itself does it; with `meet`, for all threads of the role. The waits for it are placed
    like all others."""

    tiles: tuple[str, ...]
    readers: bool = False
    meet: bool = False


@dataclass(frozen=True, slots=True)
class BarSync(Operation):
    """All threads of the role meet at named barrier `id`."""

    id: int
    threads: int


@dataclass(frozen=True, slots=True)
class WarpgroupSync(Operation):
    """The threads of each warpgroup of the role meet by themselves: at named barrier `first`, or the one so many after
    it as the warpgroup has in the role."""

    first: int


@dataclass(frozen=True, slots=True)
class CpAsyncCommit(Operation):
    """Close a group of this thread's cp.async (possibly an empty one, to keep the count)."""


@dataclass(frozen=True, slots=True)
class CpAsyncWait(Operation):
    """Wait until at most `pending` of this thread's newest groups are in flight."""

    pending: int


@dataclass(frozen=True, slots=True)
class WgmmaWait(Operation):
    """Wait until at most `pending` of this warpgroup's newest wgmma groups are in flight."""

    pending: int


@dataclass(frozen=True, slots=True)
class BulkWait(Operation):
    """Who issues TMA stores waits until at most `pending` of its newest ones still read shared memory."""

    pending: int


@dataclass(frozen=True, slots=True)
class ProxyFence(Operation):
    """Make this thread's ordinary shared-memory writes visible to the asynchronous proxy."""


@dataclass(frozen=True, slots=True)
class RingAcquire(Operation):
    """Who fills: wait until the version is empty, then announce the bytes that TMA will copy into it, if any."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingFill(Operation):
    """Who fills by ordinary writes: it arrives on the version's full barrier, and leaves the version alone.
    `by_tensor_cores`: they arrive themselves, once they have done all that this thread has asked them for."""

    cursor: Cursor
    by_tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class RingWait(Operation):
    """Who reads: wait until the version is full."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingRelease(Operation):
    """Who reads: it arrives on the version's empty barrier; or as in `RingFill` the tensor cores do."""

    cursor: Cursor
    by_tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class RingDrain(Operation):
    """Producer: wait until every version is empty, so that nobody signals a block that has gone."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class ClusterArrive(Operation):
    """Each thread says to the blocks of its cluster that it has come here; `relaxed`: and nothing else."""

    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterWait(Operation):
    """Each thread waits until all threads of its cluster that have not ended have arrived."""


@dataclass(frozen=True, slots=True)
class GridSync(Operation):
    """All threads of the role, in all blocks of the grid, wait for each other at a tensor of one number, `counter`,
    which begins as 0."""

    counter: str


@dataclass(frozen=True, slots=True)
class GridControl(Operation):
    """Wait for the grid that was launched before this one, or let the one after it begin."""

    what: Literal["wait", "launch_dependents"]


@dataclass(frozen=True, slots=True)
class TurnWait(Operation):
    """Each warpgroup of the role waits at its own named barrier for its turn at the tensor cores."""


@dataclass(frozen=True, slots=True)
class TurnPass(Operation):
    """Each warpgroup of the role arrives at the named barrier of the next one, whose turn it is then."""


@dataclass(frozen=True, slots=True)
class Advance(Operation):
    """Move a cursor to the next version. `behind` is one of the same ring that stands there and has yet to move on."""

    cursor: Cursor
    behind: Cursor | None = None


# ---- what a kernel orders its roles by -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive(Operation):
    """Each thread of the role arrives, or those for which `condition` holds, after what it has done before; or with
    `by_warps` one of each warp, after what all of it have done."""

    barrier: Barrier
    condition: Expr | None = None
    by_warps: bool = False


@dataclass(frozen=True, slots=True)
class CopiesArrive(Operation):
    """Each thread, or those for which `condition` holds, arrives when its cp.async so far have completed."""

    barrier: Barrier
    condition: Expr | None = None


@dataclass(frozen=True, slots=True)
class TensorArrive(Operation):
    """The tensor cores arrive once they have done all that the role's thread `leader` has asked them for."""

    barrier: Barrier
    leader: int


@dataclass(frozen=True, slots=True)
class TryCancel(Operation):
    """The role's thread `leader` asks for the work of a block that has not begun. The answer's bytes signal the
    barrier, and with `announces` it first announces them there; else the kernel does. Without a barrier the answer is
    one of a ring: the thread asks in the first block of a cluster for the work of another cluster, all blocks hear the
    answer, and each has announced its bytes when it acquired the version."""

    answer: Buffer
    barrier: Barrier | None
    leader: int
    announces: bool = True


@dataclass(frozen=True, slots=True)
class ExpectBytes(Operation):
    """The role's thread `leader` announces bytes to the barrier, and with `arrives` arrives."""

    barrier: Barrier
    bytes: int
    leader: int
    arrives: bool


@dataclass(frozen=True, slots=True)
class BarrierWait(Operation):
    """All threads of the role wait until the barrier's phase of this parity has completed. Where `unless` holds, it has
    already, and nobody looks."""

    barrier: Barrier
    parity: Expr
    unless: Expr | None = None


@dataclass(frozen=True, slots=True)
class NamedBarrier(Operation):
    """All threads of the role arrive at named barrier `id`, at which so many `threads` do, of other roles too; and
    with `waits` they wait for these."""

    id: int
    threads: int
    waits: bool


@dataclass(frozen=True, slots=True)
class SetRegisters(Operation):
    """From here on each thread of the role has so many registers (setmaxnreg)."""

    count: int


# ---- structure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let(Operation):
    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Phase:
    """What the trips of a loop do while its variable is less than `until`."""

    until: Expr
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Following:
    """What a loop's variable is in the next trip, and whether there is one: what the trip has found out by its end."""

    value: Var
    is_there: Var


@dataclass(frozen=True, slots=True)
class Loop(Operation):
    """`for var in range(start, stop, step)`, run by all threads of the role alike. `part` says which piece of a
    software pipeline it is. Before the trips that run `body` are those of each of the `phases` in turn, as many as
    there are. With `following` there is a first trip at all events, and each one says how it goes on; `step` then means
    nothing, but the variable stays below `stop`."""

    var: Var
    start: Expr
    stop: Expr
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
    """Leave the innermost `Loop` or `Forever`, at the end of one of its trips: what would follow is not run then."""


@dataclass(frozen=True, slots=True)
class Trap(Operation):
    """The thread gives up, and the grid with it. Under a `Branch` whose condition may differ between threads."""


@dataclass(frozen=True, slots=True)
class Branch(Operation):
    """A condition that all threads of the role agree on, unless it only guards a `Trap`. A `guard` protects a piece of
    a `Pipeline`: it holds where the trip count is at least `least`."""

    condition: Expr
    then: tuple[Operation, ...]
    orelse: tuple[Operation, ...] = ()
    part: Literal["", "guard"] = ""
    least: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline(Operation):
    """A software pipeline whose trip count is known only at run time: its prologue in guards, its steady state, its
    epilogue in guards. `stages` is the number of its last stage in this role."""

    var: Var
    stages: int
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """Warps first_warp … first_warp + warps − 1. `registers` is the setmaxnreg count (None: as launched), the same for
    roles that share a warpgroup. `single_thread` roles run their body in one elected thread of their first warp. Where
    the role's warpgroups take turns, `turns_at` is the named barrier of the first; the turn is its own before the body,
    and again after it."""

    name: str
    first_warp: int
    warps: int
    body: tuple[Operation, ...]
    registers: int | None = None
    single_thread: bool = False
    turns_at: int | None = None

    @property
    def threads(self) -> int:
        return self.warps * 32

    def arrivals(self, by: Arrivals) -> int:
        """How often the role arrives at an mbarrier to say one thing."""
        return 1 if self.single_thread else arrivals_of(self.warps, by)

    @property
    def turn_barriers(self) -> tuple[int, ...]:
        """The named barriers at which its warpgroups wait for their turns."""
        return () if self.turns_at is None else tuple(range(self.turns_at, self.turns_at + self.warps // 4))


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel ready to be written as PTX. `smem_bytes` is dynamic shared memory, `barriers_at` the offset of the
    rings' mbarriers in it: for each ring in turn `depth` full barriers, then `depth` empty ones; behind them the
    kernel's own `barriers`, and behind these the address of what is allocated for the tiles in `tensor` memory.
    `common` is what all warps of the block do before they take up their roles. Roles that the kernel makes `by_hand`
    count their threads from 0 each. What `begins_early` may run while the grid before it does, and reaches no tensor
    until it has waited for that."""

    name: str
    params: tuple[Buffer | Var, ...]
    maps: tuple[TensorMap, ...]
    grid: tuple[Extent, Extent, Extent]
    block_vars: tuple[Var, ...]
    roles: tuple[Role, ...]
    shared: tuple[SharedTile, ...]
    fragments: tuple[tuple[Buffer, Fragment], ...]
    rings: tuple[Ring, ...]
    smem_bytes: int = 0
    barriers_at: int = 0
    span: Span = field(default=NOWHERE, compare=False)
    barriers: tuple[Barriers, ...] = ()
    common: Role | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    by_hand: bool = False
    tensor: tuple[TensorTile, ...] = ()
    begins_early: bool = False

    @property
    def threads(self) -> int:
        return sum(r.threads for r in self.roles)

    @property
    def paired(self) -> bool:
        """Whether the tensor cores of two blocks work together: then all that is said to them is said to both."""
        return any(ring.paired for ring in self.rings)

    @property
    def barrier_bytes(self) -> int:
        """What all mbarriers take."""
        return MBARRIER_BYTES * (
            sum(2 * r.depth for r in self.rings if r.has_barriers) + sum(len(b.counts) for b in self.barriers)
        )

    @property
    def tensor_columns(self) -> int:
        """The columns of tensor memory to allocate: a power of two, and 32 at least (PTX ISA, tcgen05.alloc)."""
        last = max((t.offset + t.columns * t.depth for t in self.tensor), default=0)
        return max(32, 1 << (last - 1).bit_length()) if last else 0

    @property
    def tensor_address_at(self) -> int:
        """Where in dynamic shared memory its address is written."""
        return self.barriers_at + self.barrier_bytes

    def named_barrier(self, role: int) -> int:
        """The named barrier at which the threads of a role meet: none that the kernel itself names."""
        if len(self.roles) == 1:
            return 0
        taken = {op.id for r in self.roles for op in walk(r.body) if isinstance(op, NamedBarrier)}
        return [number for number in range(1, 16) if number not in taken][role]

    def operations(self) -> Iterator[Operation]:
        """Those of all roles."""
        for role in self.roles:
            yield from walk(role.body)


def static_trips(loop: Loop) -> int | None:
    """How often the loop runs; None where that is known only at run time."""
    if isinstance(loop.start, Const) and isinstance(loop.stop, Const) and loop.following is None:
        return len(range(int(loop.start.value), int(loop.stop.value), loop.step))
    return None


def final_guard(loop: Loop) -> Branch | None:
    """What guards all that a trip of the loop does, by a condition that once it does not hold never holds again: the
    loop's variable is to be less than something that does not move with it."""
    *before, guard = loop.body
    if not isinstance(guard, Branch) or guard.orelse or guard.part or not all(isinstance(op, Let) for op in before):
        return None
    condition = guard.condition
    for let in reversed(before):
        assert isinstance(let, Let)
        condition = substitute(condition, {let.var: let.value})
    if not isinstance(condition, Binary) or condition.op not in ("lt", "le"):
        return None
    if any(isinstance(e, Load) for e in walk_expr(condition)):
        return None
    terms = dict(affine(condition.a).terms)
    still = [condition.b, *(atom for atom in terms if atom != loop.var)]
    rises = terms.get(loop.var, 0) > 0 and not any(loop.var in walk_expr(e) for e in still)
    return guard if rises else None


def scalar_reads(op: Operation) -> tuple[str, ...]:
    """The tensors whose elements every thread of the role reads for itself, before the operation or in its indices."""
    exprs: tuple[Expr, ...]
    match op:
        case Let(value=value):
            exprs = (value,)
        case Loop(start=start, stop=stop):
            exprs = (start, stop)
        case Branch(condition=condition):
            exprs = (condition,)
        case CpAsync(source=Region(start=starts), destination=destination):
            exprs = (*starts, *destination.start)
        case TmaStore(start=starts, four=four):
            exprs = starts if four is None else (*starts, *four.rows, four.at)
        case CpAsync(source=Gather(indices=indices, condition=condition)):
            exprs = (*indices, condition)
        case TmaLoad(start=starts, tap=tap, four=four):
            exprs = (*starts, *tap) if four is None else (*starts, *four.rows, four.at)
        case TensorMma(clear=clear, scales=scales):
            exprs = (clear,) if scales is None else (clear, scales.start)
        case TensorLoad(column=column) | TensorStore(column=column):
            exprs = (column,)
        case TensorArrive(barrier=barrier) | TryCancel(barrier=Barrier() as barrier):
            exprs = (barrier.index,)
        case BarrierWait(barrier=barrier, parity=parity, unless=unless):
            exprs = (barrier.index, parity) if unless is None else (barrier.index, parity, unless)
        case Arrive(barrier=barrier, condition=asked) | CopiesArrive(barrier=barrier, condition=asked):
            exprs = (barrier.index,) if asked is None else (barrier.index, asked)
        case _:
            return ()
    return tuple(dict.fromkeys(e.buffer.name for x in exprs for e in walk_expr(x) if isinstance(e, Load)))


def own_rows(op: Wgmma) -> tuple[str, ...]:
    """The shared tiles of which each warpgroup reads only the rows that its part of the sum has."""
    return () if op.transpose_a or op.a.name == op.b.name else (op.a.name,)


def nested(op: Operation) -> tuple[tuple[Operation, ...], ...]:
    """The operation lists inside a structured operation."""
    match op:
        case Loop():
            return op.bodies
        case Forever(body=body) | Pipeline(body=body):
            return (body,)
        case Branch(then=then, orelse=orelse):
            return (then, orelse)
        case _:
            return ()


def walk(body: tuple[Operation, ...]) -> Iterator[Operation]:
    """Every operation, in program order, parents first."""
    for op in body:
        yield op
        for inner in nested(op):
            yield from walk(inner)
