"""T.copy: a box of one buffer to a box of another, converting the element type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NoReturn

from tilec.ir.tile import Attr, Region, TileOp, with_attr
from tilec.ops.barriers import as_barrier
from tilec.ops.form import MEMORY, Barrier, Leader, Whole, Yes, attributes, form, same_shape
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import ANNOTATIONS, Call, Parameter, Signature
from tilec.ops.values import Access, show_shape
from tilec.support import schema
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass

_OWN_CHOICE = "tilec chooses by what is copied"


def _check(call: Call) -> TileOp:
    src, dst = regions_of(call)
    if src.shape != dst.shape:
        fail(
            "shape-mismatch",
            "the two sides of T.copy have different shapes",
            call.span,
            f"from {show_shape(src.extent)} to {show_shape(dst.extent)}",
            secondary=tuple(
                Label(r.buffer.span, f"{r.buffer.name} is {show_shape(r.buffer.extents)}") for r in (src, dst)
            ),
        )
    return tile_op("copy", (src, dst), call.span, **_asked(call))


def refuse_scopes(op: TileOp, message: str, help: str) -> NoReturn:
    """Says where the two sides of a copy lie."""
    fail(
        "wrong-scope",
        message,
        op.span,
        " to ".join(f"{r.buffer.name} in {r.buffer.scope} memory" for r in op.regions),
        secondary=tuple(Label(r.buffer.span, "from here") for r in op.regions),
        help=help,
    )


def _check_async(call: Call) -> TileOp:
    op = _check(call)
    if tuple(r.buffer.scope for r in op.regions) != ("global", "shared"):
        refuse_scopes(op, "T.async_copy is from a tensor to a shared tile", help="write T.copy")
    return with_attr(op, "asynchronous", True)


def _check_tma(call: Call) -> TileOp:
    """A load that signals a barrier of the kernel's, or a store, which is a copy like any other."""
    op = _check(call)
    scopes = tuple(r.buffer.scope for r in op.regions)
    if scopes not in (("global", "shared"), ("shared", "global")):
        refuse_scopes(op, "T.tma_copy is between a tensor and a shared tile", help="write T.copy")
    if op.regions[1].buffer.scope == "global":
        if call["barrier"].value is not None:
            call.refuse("barrier", "left out: a store signals nobody")
        return op
    if call["barrier"].value is None:
        fail(
            "missing-argument",
            "T.tma_copy needs `barrier` to load a tile",
            call.span,
            "nobody would know when it is complete",
            help="pass barrier= what T.alloc_barrier made, or write T.copy",
        )
    return with_attr(op, "barrier", as_barrier(call["barrier"], call.name))


def _asked(call: Call) -> dict[str, Attr]:
    """What is said about how to copy, as attributes."""
    asked: dict[str, Attr] = {}
    if "disable_tma" in call.arguments and call.boolean("disable_tma"):
        asked["tma"] = False
    if "coalesced_width" in call.arguments and call["coalesced_width"].value is not None:
        asked["width"] = call.integer("coalesced_width")
        if asked["width"] not in (1, 2, 4, 8, 16):
            call.refuse("coalesced_width", "1, 2, 4, 8 or 16")
    return asked


def regions_of(call: Call) -> tuple[Region, Region]:
    """The two sides. One that does not say its extents takes those of the other one, so that is looked at first."""
    first, second = sorted(("src", "dst"), key=lambda name: _open(call, name))
    if _open(call, first) == 2:
        fail(
            "unknown-extent",
            "nothing says how much T.copy is to copy",
            call.span,
            "both sides are an index without extent",
            help="write a slice on one side, as in `A[0:16, 0:16]`",
        )
    known = call.region(first)
    other = call.region(second, known.extent)
    return (known, other) if first == "src" else (other, known)


def _open(call: Call, name: str) -> int:
    """How little a side says of its extents: a box all, an element of vectors its lanes, another element nothing."""
    value = call[name].value
    if not isinstance(value, Access):
        return 0
    return 1 if value.is_vector else 0 if value.has_extent else 2


def _effects(op: TileOp) -> Effects:
    src, dst = op.regions
    return Effects((src,), (dst,))


def _reference(op: TileOp, env: Environment) -> None:
    src, dst = op.regions
    env.write(dst, env.read(src).reshape(dst.extent))


COPY = register(
    Operation(
        "copy",
        (
            Spelling(
                Signature(
                    "T.copy",
                    (
                        Parameter("src"),
                        Parameter("dst"),
                        Parameter("coalesced_width", None, keyword_only=True),
                        Parameter("disable_tma", False, keyword_only=True),
                        Parameter("eviction_policy", None, keyword_only=True, hint=_OWN_CHOICE),
                        Parameter("prefer_instruction", None, keyword_only=True, hint=_OWN_CHOICE),
                        ANNOTATIONS,
                        Parameter("loop_layout", None, keyword_only=True, hint=_OWN_CHOICE),
                    ),
                ),
                """Copy `src` to `dst`, both a tensor, a shared tile, a fragment or a box of one, of the same shape.

                Dimensions of extent 1 do not count. An index without extent, `A[i, j]`, takes the shape of the other
                side, aligned at the last dimension. Elements are converted to the dtype of `dst`. What lies outside a
                tensor reads as 0 and is not written. With disable_tma=True it goes another way than by TMA;
                `coalesced_width` is how many neighbours one thread moves at once, where threads move them.
                """,
                _check,
            ),
            Spelling(
                Signature(
                    "T.async_copy",
                    (
                        Parameter("src"),
                        Parameter("dst"),
                        Parameter("coalesced_width", None, keyword_only=True),
                        ANNOTATIONS,
                        Parameter("loop_layout", None, keyword_only=True, hint=_OWN_CHOICE),
                    ),
                ),
                """Begin a copy from a tensor to a shared tile, as a group of its own for T.ptx_wait_group.

                It goes by cp.async or TMA. What touches `dst` waits for it even where no T.ptx_wait_group stands
                between, with a warning.
                """,
                _check_async,
            ),
            Spelling(
                Signature(
                    "T.tma_copy",
                    (
                        Parameter("src"),
                        Parameter("dst"),
                        Parameter("barrier", None, keyword_only=True),
                        Parameter("cluster_mask", None, supported=False, keyword_only=True),
                        Parameter("leader_scope_threads", None, keyword_only=True, hint=_OWN_CHOICE),
                        Parameter("eviction_policy", None, keyword_only=True, hint=_OWN_CHOICE),
                        ANNOTATIONS,
                    ),
                ),
                """Begin a copy from a tensor to a shared tile by TMA, and announce its bytes to `barrier`.

                One thread of those that come here does it. The phase of the barrier completes when the bytes and its
                arrivals have come; T.barrier_wait waits for that. From a tile to a tensor it is T.copy.
                """,
                _check_tma,
            ),
        ),
        _effects,
        _reference,
    )
)


@form("copy", MEMORY, MEMORY)
@dataclass(frozen=True, slots=True)
class Attributes:
    ahead: Whole | None = None
    announces: Yes | None = None
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


@facet("copy", "agrees")
def agrees(op: TileOp) -> Iterator[str]:
    source, destination = op.regions
    given: Attributes = attributes(op)
    yield from same_shape(source, destination)
    is_load = (source.buffer.scope, destination.buffer.scope) == ("global", "shared")
    loads = [name for name in ("announces", "asynchronous", "barrier", "signals") if getattr(given, name) is not None]
    if loads and not is_load:
        yield f"{loads[0]} is for copies from a tensor to a shared tile"
    if (given.leader is None) != (given.barrier is None and given.signals is None):
        yield "a leader and a barrier come together"
    if (given.announces is None) != (given.barrier is None):
        yield "who is given a barrier announces its bytes"
    ahead = (given.ahead, given.of, given.step)
    if any(part is None for part in ahead) and any(part is not None for part in ahead):
        yield "ahead, of and step come together"
