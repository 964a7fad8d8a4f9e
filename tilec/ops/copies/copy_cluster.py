"""T.copy_cluster: to the tile of another block of the cluster, or from a tensor for several of its blocks at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.tile import TileOp
from tilec.ops.copies.copy import CLUSTER_MASK, SIDES, Copy, read_cluster_mask, read_regions
from tilec.ops.form import Scalar, Shared, verify_same_shape
from tilec.ops.language.signature import (
    ANNOTATIONS,
    EVICTION_POLICY,
    IGNORED_WIDTH,
    LOOP_LAYOUT,
    Call,
    Parameter,
    Signature,
    as_expr,
)
from tilec.ops.lowering import Demand, LoweringContext, build_elementwise, make_demand
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

_BLOCK = Parameter("dst_block", None, keyword_only=True)
_REMOTE_BARRIER = Parameter("remote_barrier", None, keyword_only=True)


@dataclass(frozen=True, slots=True)
class Send(TileOp):
    """Copies `source` to `destination` of another `block` of the cluster."""

    name = "send"
    by_warpgroups = True
    reaches_regions = False
    reaches_blocks = True
    source: Shared
    destination: Shared
    block: Scalar


def _check_send(call: Call) -> TileOp:
    """Return the operation of T.copy_cluster: a send to another block, or a load for several blocks; raises errors for
    others."""
    given = [name for name in ("dst_block", "cluster_mask") if call[name].value is not None]
    if len(given) != 1:
        raise_error(
            "wrong-argument",
            "T.copy_cluster needs either `dst_block` or `cluster_mask`",
            call.span,
            "neither is given" if not given else "both are given",
            help="dst_block=n stores to block n of the cluster, cluster_mask=0b11 loads for blocks 0 and 1",
        )
    src, dst = read_regions(call)
    wanted = "shared" if given == ["dst_block"] else "global"
    if (src.buffer.scope, dst.buffer.scope) != (wanted, "shared"):
        raise_error(
            "wrong-scope",
            f"T.copy_cluster with {given[0]}= is from {'a shared tile' if wanted == 'shared' else 'a tensor'} to one",
            call.span,
            f"{src.buffer.name} in {src.buffer.scope} memory to {dst.buffer.name} in {dst.buffer.scope} memory",
            secondary=tuple(Label(r.buffer.span, "from here") for r in (src, dst)),
        )
    if src.shape != dst.shape:
        raise_error(
            "shape-mismatch",
            "the two sides of T.copy_cluster have different shapes",
            call.span,
            secondary=tuple(Label(r.span, f"{list(r.extent)}") for r in (src, dst)),
        )
    if given == ["cluster_mask"]:
        if call["remote_barrier"].value is not None:
            call.refuse("remote_barrier", "omitted with cluster_mask: tilec waits for the tile where it is read")
        return Copy(src, dst, cluster_mask=read_cluster_mask(call), span=call.span)
    block = as_expr(call["dst_block"])
    if block.dtype.is_float:
        call.refuse("dst_block", "the number of a block of the cluster")
    return Send(src, dst, block, span=call.span)


def _evaluate_send(op: Send, env: Environment) -> None:
    """Write the source's elements to the destination of the other block in numpy."""
    src, dst = op.regions
    env.peer(int(env.scalar(op.block))).write(dst, env.read(src).reshape(dst.extent))


define_operation(
    Send,
    list_move_effects,
    _evaluate_send,
    Spelling(
        Signature(
            "T.copy_cluster",
            (*SIDES, _BLOCK, CLUSTER_MASK, _REMOTE_BARRIER, EVICTION_POLICY, IGNORED_WIDTH, ANNOTATIONS, LOOP_LAYOUT),
        ),
        """Copy between blocks of a cluster, or load a tile for several of them.

        With dst_block=n the shared tile `src` is copied to the tile `dst` of block n of the cluster, which may
        read it after the next T.cluster_sync; a T.cluster_sync before it must ensure that block n no longer
        reads the tile. With `remote_barrier` a thread arrives once at this barrier of block n when all is
        copied, and block n waits for it instead. With cluster_mask=m a box of the tensor is loaded into `dst` of
        every block whose bit is set: the first of these blocks gives the box, and blocks outside the mask load
        their own. If the mask has all blocks along an axis, and a producer warp loads the tile, each block loads
        one slice for all.
        """,
        _check_send,
    ),
    lower=lambda op, context: (
        replace(build_elementwise(op.destination, op.source, context, op.span), block=op.block),
    ),
)


@attach_facet(Send, "demand")
def list_send_demands(op: Send, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of a send: loads and stores of each element in shared memory, by threads."""
    src, dst = op.regions
    read, written = (r.buffer.dtype.bytes for r in (src, dst))
    elements = math.prod(dst.extent)
    return (
        make_demand("ld.shared", bytes=elements * read, threads=context.threads),
        make_demand("st.shared", bytes=elements * written, threads=context.threads),
    )


@attach_facet(Send, "agrees")
def verify_send(op: Send) -> Iterator[str]:
    """Yield a violation if both sides of a send differ in shape, or its block is no integer."""
    yield from verify_same_shape(*op.regions)
    if op.block.dtype.kind not in ("int", "uint"):
        yield "block is the number of a block of the cluster"
