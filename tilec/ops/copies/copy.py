"""T.copy: a box of one buffer to a box of another, converting the element type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Annotated, Literal, NoReturn, cast

from tilec.ir import tile
from tilec.ir.expr import cast_expr as converted
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.operations.interfaces import Axis, Doer
from tilec.ops.form import Announces, AnyMemory, Barrier, Leader, Positive, Whole, Yes, verify_same_shape
from tilec.ops.language.signature import (
    ANNOTATIONS,
    EVICTION_POLICY,
    LOOP_LAYOUT,
    PREFERRED_INSTRUCTION,
    Call,
    Parameter,
    Signature,
)
from tilec.ops.language.values import Access, show_shape
from tilec.ops.registry import Spelling, attach_facet, define_operation, list_move_effects
from tilec.ops.synchronisation.barriers import as_barrier
from tilec.support import schema
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

SIDES = (Parameter("src"), Parameter("dst"))
_WIDTH = Parameter("coalesced_width", None, keyword_only=True)
_DISABLE_TMA = Parameter("disable_tma", False, keyword_only=True)
_BARRIER = Parameter("barrier", None, keyword_only=True)
CLUSTER_MASK = Parameter("cluster_mask", None, keyword_only=True)
_LEADER_SCOPE = Parameter("leader_scope_threads", None, keyword_only=True, hint="tilec chooses it from the operands")
_AXES = schema.Constraint(lambda axes: axes in ("", "x", "y", "z", "xy", "xz", "yz", "xyz"), "axes of the cluster")


@dataclass(frozen=True, slots=True)
class Copy(tile.TileOp):
    """Copies `source` to `destination`.

    Set by the front end: `tma=False` forbids TMA; `width` is the elements that a thread moves at once; `asynchronous`
    copies are awaited by groups, `prefer_async` ones where possible; `cluster_mask` are the blocks that get the tile.
    A copy that `announces` its bytes to its own `barrier`, or `signals` that of a stage, is issued by thread `leader`.
    A copy that begins `prefetch_distance` uses early names the fragment that it is a copy `of`, and its `step` of the
    unrolled loop.

    Set by passes: `staged` marks both halves of a store through shared memory, by `parts` warpgroups of the block;
    `wait` completes it at once; `multicast` are the cluster axes along whose blocks one load serves all; `prefetched`
    is the tile's versions in a loop that is not pipelined; `factor` marks copies of an operand in tensor memory;
    `block` is the block of the cluster whose barrier it signals.
    """

    name = "copy"
    by_warpgroups = True
    fragments_lie = "alike"
    moves = True
    order_is_known = True
    touches_boxes = True
    is_elementwise = True
    source: AnyMemory
    destination: AnyMemory
    prefetch_distance: Whole | None = None
    announces: Announces | None = None
    asynchronous: Yes | None = None
    barrier: Barrier | None = None
    cluster_mask: Annotated[int, schema.Range(1, (1 << 16) - 1)] | None = None
    leader: Leader | None = None
    of: str | None = None
    prefer_async: Yes | None = None
    signals: Barrier | None = None
    step: Whole | None = None
    tma: Literal[False] | None = None
    width: Literal[1, 2, 4, 8, 16] | None = None
    block: tile.Expr | None = field(default=None, metadata=BY_PASSES)
    factor: Yes | None = field(default=None, metadata=BY_PASSES)
    prefetched: Positive | None = field(default=None, metadata=BY_PASSES)
    multicast: Annotated[str, _AXES] = field(default="", metadata=BY_PASSES)
    parts: Annotated[int, schema.Range(1, 8)] = field(default=1, metadata=BY_PASSES)
    staged: Yes | None = field(default=None, metadata=BY_PASSES)
    via: Literal["tma", "tma_store", "cp_async", "registers", "stmatrix", "tcgen05"] | None = field(
        default=None, metadata=BY_PASSES
    )
    wait: Literal["at once"] | None = field(default=None, metadata=BY_PASSES)

    @property
    def signals_barrier(self) -> bool:
        return self.barrier is not None

    @property
    def is_load(self) -> bool:
        return (self.source.buffer.scope, self.destination.buffer.scope) == ("global", "shared")

    @property
    def is_asynchronous(self) -> bool:
        return self.asynchronous is not None

    @property
    def copies_from_tensor(self) -> bool:
        return self.source.buffer.scope == "global"

    def element(self, place: tuple[tile.Expr, ...], sources: tuple[tile.Expr, ...]) -> tile.Store:
        """Return the store of a source element, converted to the destination's type, at `place`."""
        buffer = self.destination.buffer
        return tile.Store(buffer, place, converted(sources[0], buffer.dtype), self.span)

    @property
    def done_by(self) -> Doer:
        return "one thread" if self.signals_barrier else "all threads"

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return an axis for each pair of dimensions longer than 1 on both sides; empty where their numbers differ."""
        dims = [[d for d, extent in enumerate(r.extent) if extent != 1] for r in (self.source, self.destination)]
        if len(dims[0]) != len(dims[1]):
            return ()
        return tuple(Axis(((0, d), (1, e))) for d, e in zip(*dims, strict=True))


def _check_copy(call: Call) -> Copy:
    """Return the copy of a call of T.copy; raises an error unless both sides have one shape."""
    src, dst = read_regions(call)
    if src.shape != dst.shape:
        raise_error(
            "shape-mismatch",
            "the two sides of T.copy have different shapes",
            call.span,
            f"from {show_shape(src.extent)} to {show_shape(dst.extent)}",
            secondary=tuple(
                Label(r.buffer.span, f"{r.buffer.name} is {show_shape(r.buffer.extents)}") for r in (src, dst)
            ),
        )
    tma: Literal[False] | None = False if "disable_tma" in call.arguments and call.read_boolean("disable_tma") else None
    return Copy(src, dst, tma=tma, width=_read_width(call), span=call.span)


def refuse_scopes(op: tile.TileOp, message: str, help: str) -> NoReturn:
    """Raise the error `wrong-scope` with this message, and name the memory of both sides of a copy."""
    raise_error(
        "wrong-scope",
        message,
        op.span,
        " to ".join(f"{r.buffer.name} in {r.buffer.scope} memory" for r in op.regions),
        secondary=tuple(Label(r.buffer.span, "from here") for r in op.regions),
        help=help,
    )


def _check_async_copy(call: Call) -> tile.TileOp:
    """Return the asynchronous copy of T.async_copy; raises an error unless it is from a tensor to a shared tile."""
    op = _check_copy(call)
    if tuple(r.buffer.scope for r in op.regions) != ("global", "shared"):
        refuse_scopes(op, "T.async_copy copies from a tensor to a shared tile only", help="write T.copy")
    return replace(op, asynchronous=True)


def _check_tma_copy(call: Call) -> tile.TileOp:
    """Return the copy of T.tma_copy: a load that announces its bytes to the kernel's barrier, or an ordinary store.
    Raises an error for other memories, a load without a barrier, and a store with one."""
    op = _check_copy(call)
    scopes = tuple(r.buffer.scope for r in op.regions)
    if scopes not in (("global", "shared"), ("shared", "global")):
        refuse_scopes(op, "T.tma_copy copies between a tensor and a shared tile only", help="write T.copy")
    if op.regions[1].buffer.scope == "global":
        if call["barrier"].value is not None:
            call.refuse("barrier", "omitted: a store signals no barrier")
        if call["cluster_mask"].value is not None:
            call.refuse("cluster_mask", "omitted: several blocks get a tile from a tensor, and this is a store")
        return op
    if call["barrier"].value is None:
        raise_error(
            "missing-argument",
            "T.tma_copy needs `barrier` to load a tile",
            call.span,
            "no thread could wait for it",
            help="pass a barrier of T.alloc_barrier as barrier=, or write T.copy",
        )
    barrier = as_barrier(call["barrier"], call.name)
    return replace(op, barrier=barrier, announces=True, cluster_mask=read_cluster_mask(call))


def read_cluster_mask(call: Call) -> int | None:
    """Return the blocks of the cluster that get the tile, a bit each; None if the call names none. 0 is refused."""
    if call["cluster_mask"].value is None:
        return None
    mask = call.read_integer("cluster_mask")
    if mask < 1:
        call.refuse("cluster_mask", "a bit for each block that gets the tile")
    return mask


def _read_width(call: Call) -> Literal[1, 2, 4, 8, 16] | None:
    """Return the number of elements that one thread moves at once, a power of two up to 16; None if the kernel does not
    say. Other numbers are refused."""
    if "coalesced_width" not in call.arguments or call["coalesced_width"].value is None:
        return None
    width = call.read_integer("coalesced_width")
    if width not in (1, 2, 4, 8, 16):
        call.refuse("coalesced_width", "1, 2, 4, 8 or 16")
    return cast(Literal[1, 2, 4, 8, 16], width)


def read_regions(call: Call) -> tuple[tile.Region, tile.Region]:
    """Return a copy's source and destination regions; a side without extents takes the other side's, which is read
    first. Raises `unknown-extent` where neither has any."""
    first, second = sorted(("src", "dst"), key=lambda name: _rank_missing_extents(call, name))
    if _rank_missing_extents(call, first) == 2:
        raise_error(
            "unknown-extent",
            "T.copy has no extent",
            call.span,
            "both sides are an index without an extent",
            help="write a slice on one side, as in `A[0:16, 0:16]`",
        )
    known = call.read_region(first)
    other = call.read_region(second, known.extent)
    return (known, other) if first == "src" else (other, known)


def _rank_missing_extents(call: Call, name: str) -> int:
    """Return how much a side lacks its extents: 0 for a box, 1 for an element of vectors, 2 for another element."""
    value = call[name].value
    if not isinstance(value, Access):
        return 0
    return 1 if value.is_vector else 0 if value.has_extent else 2


define_operation(
    Copy,
    list_move_effects,
    lambda op, env: env.write(op.destination, env.read(op.source).reshape(op.destination.extent)),
    Spelling(
        Signature(
            "T.copy", (*SIDES, _WIDTH, _DISABLE_TMA, EVICTION_POLICY, PREFERRED_INSTRUCTION, ANNOTATIONS, LOOP_LAYOUT)
        ),
        """Copy `src` to `dst`, each a tensor, a shared tile, a fragment or a box of one, of the same shape.

        Dimensions of extent 1 do not count. An index without extent, `A[i, j]`, takes the shape of the other
        side, aligned at the last dimension. Elements are converted to the dtype of `dst`. Elements outside a
        tensor read as 0 and are not written. disable_tma=True excludes TMA; `coalesced_width` is the number of
        adjacent elements that one thread moves at once, where threads move them.
        """,
        _check_copy,
    ),
    Spelling(
        Signature("T.async_copy", (*SIDES, _WIDTH, ANNOTATIONS, LOOP_LAYOUT)),
        """Begin a copy from a tensor to a shared tile, as a group of its own for T.ptx_wait_group.

        It uses cp.async or TMA. Statements that use `dst` wait for it even where the kernel has no
        T.ptx_wait_group, with a warning.
        """,
        _check_async_copy,
    ),
    Spelling(
        Signature("T.tma_copy", (*SIDES, _BARRIER, CLUSTER_MASK, _LEADER_SCOPE, EVICTION_POLICY, ANNOTATIONS)),
        """Begin a copy from a tensor to a shared tile by TMA, and announce its bytes to `barrier`.

        One of the threads that execute this issues it. The phase of the barrier completes with its last bytes
        and arrivals; T.barrier_wait waits for that. A part of a tile is all rows of some columns, which begin
        and end at multiples of 128 bytes. From a tile to a tensor it is T.copy. With cluster_mask=m every block
        whose bit is set gets the box that the first of them names. Each block that executes the copy loads it
        into its own tile, and announces it to its own barrier: no block writes a tile that another still reads.
        """,
        _check_tma_copy,
    ),
)


@attach_facet(Copy, "agrees")
def verify_copy(op: Copy) -> Iterator[str]:
    """Yield a message where a copy's sides differ in shape, or attributes for loads, barriers or prefetch do not fit
    together."""
    source, destination = op.regions
    yield from verify_same_shape(source, destination)
    is_load = (source.buffer.scope, destination.buffer.scope) == ("global", "shared")
    loads = [name for name in ("announces", "asynchronous", "barrier", "signals") if getattr(op, name) is not None]
    if loads and not is_load:
        yield f"{loads[0]} is for copies from a tensor to a shared tile"
    if (op.leader is None) != (op.barrier is None and op.signals is None):
        yield "a leader and a barrier come together"
    if (op.announces is None) != (op.barrier is None):
        yield "a copy with a barrier must announce its bytes"
    prefetch_distance = (op.prefetch_distance, op.of, op.step)
    if any(part is None for part in prefetch_distance) and any(part is not None for part in prefetch_distance):
        yield "prefetch_distance, of and step come together"
