"""What passes add to the attributes that an operation's own form has (`ops.form`): how it is done, which no kernel
says. Once layouts are known operations have these, and otherwise are still what their forms promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from tilec.ir.tile import Kernel, Region, Stmt, TileOp, walk, with_bodies
from tilec.ir.types import FLOAT4_E2M1, UINT8
from tilec.ops import registry
from tilec.ops.form import Index, Positive, Yes, show_violations
from tilec.support import schema
from tilec.support.records import dataclass

Axes = Annotated[
    str, schema.Where(lambda axes: axes in ("x", "y", "z", "xy", "xz", "yz", "xyz"), "axes of the cluster")
]


@dataclass(frozen=True, slots=True)
class Decided:
    """`via` is the mechanism. Of a store through shared memory, `staged`, each of `parts` warpgroups has its own rows.
    `fetched` says how many versions there are of a tile that the producer loads outside pipelined loops, `multicast`
    along which axes of the cluster blocks load a tile together, `block` where the barrier counts that a load signals. A
    copy of a `factor` moves what a product reads in tensor memory. Of a product `open` means that its warps may share
    out its sum as they like, `paired` that two blocks work on it, `order` how its factor lies in registers, and
    `nibbles` that a byte is two elements. `version0` and so on are the versions that the regions are about, where
    the kernel names them."""

    via: (
        Literal[
            "cp_async", "mma", "nothing", "registers", "setmaxnreg", "simt", "stmatrix", "tcgen05", "tma", "tma_store",
            "wgmma",
        ]
        | None
    ) = None  # fmt: skip
    staged: Yes | None = None
    parts: Annotated[int, schema.Range(2, 8)] | None = None
    fetched: Positive | None = None
    multicast: Axes | None = None
    block: Index | None = None
    factor: Yes | None = None
    open: Yes | None = None
    paired: Yes | None = None
    order: Literal["as accumulated"] | None = None
    nibbles: Literal["s4", "u4"] | None = None
    wait: Literal["at once"] | None = None
    version0: Index | None = None
    version1: Index | None = None
    version2: Index | None = None


_NAMES = frozenset(field.name for field in fields(Decided))


def violations(kernel: Kernel) -> Iterator[str]:
    """What is wrong with the operations of a kernel for which something has been decided."""
    for stmt in walk(kernel.body):
        if isinstance(stmt, TileOp):
            try:
                schema.record(Decided, _decided(stmt), stmt.name)
            except schema.SchemaError as error:
                yield f"line {stmt.span.line}: {error}"
    yield from show_violations(replace(kernel, body=tuple(map(_as_formed, kernel.body))))


_ELEMENTS = {"a_type": 0, "b_type": 1}
"""The attributes that say of which type the elements of a region are, whatever holds them."""


def _decided(op: TileOp) -> dict[str, Any]:
    """The attributes that its form does not know."""
    operation = registry.find(op.name)
    if operation is None or "form" not in operation.facets:
        return {}
    own = {field.name for field in fields(operation.facets["form"]().attributes)}
    return {name: value for name, value in op.attrs if name in _NAMES - own}


def _as_formed(stmt: Stmt) -> Stmt:
    """The statement, with no other attributes than those of its operations' forms."""
    if not isinstance(stmt, TileOp):
        return with_bodies(stmt, _as_formed)
    decided = _decided(stmt)
    kept = {name: value for name, value in stmt.attrs if name not in decided}
    if kept.get("announces") is False:
        kept["announces"] = True  # who says so is decided: the kernel announces the bytes itself
    if decided.get("via") == "tcgen05" and "clear_when" in kept:
        kept.setdefault("leader", 0)  # of a sum that passes put in tensor memory it is the producer's only thread
    regions = list(stmt.regions)
    for name, place in _ELEMENTS.items():
        if kept.get(name) == "e2m1":
            regions[place] = _of_halves(regions[place])
    if kept == dict(stmt.attrs) and regions == list(stmt.regions):
        return stmt
    return replace(stmt, regions=tuple(regions), attrs=tuple(sorted(kept.items())))


def _of_halves(region: Region) -> Region:
    """A region of bytes, each of them two elements of four bits."""
    buffer = region.buffer
    if buffer.dtype != UINT8 or not isinstance(last := buffer.extents[-1], int):
        return region
    whole = replace(buffer, dtype=FLOAT4_E2M1, extents=(*buffer.extents[:-1], 2 * last))
    return replace(region, buffer=whole, extent=(*region.extent[:-1], 2 * region.extent[-1]))
