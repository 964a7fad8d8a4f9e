"""The memory effects of warp operations, for the verifier: independent of `lower.waits.touches`."""

from __future__ import annotations

from typing import assert_never

from tilec.ir import tile, warp
from tilec.ir.warp import Operation


def op_name(op: Operation) -> str:
    """Return the class name of an operation, for messages."""
    return type(op).__name__


def operation_effects(op: Operation) -> tuple[set[str], set[str], str | None, set[str]]:
    """Return the buffers an operation reads, those it writes, its completion queue or None, and the asynchronous
    proxy's. Reads of its scalars and indices are included."""
    reads, writes, queue, by_async = effects_without_scalars(op)
    return reads | set(warp.scalar_reads(op)), writes, queue, by_async


def atomic_buffers(op: Operation) -> set[str]:
    """Return the buffers that a nest stores to by atomics alone, or by copies of single threads; none for other
    operations. The kernel orders these stores among themselves."""
    if not isinstance(op, warp.Elementwise):
        return set()
    stores = [s for s in tile.walk_statements(op.nest.body) if isinstance(s, tile.Store)]
    if op.copy_bytes:
        return {s.buffer.name for s in stores}
    plain = {s.buffer.name for s in stores if s.atomic is None} | effects_without_scalars(op)[0]
    return {s.buffer.name for s in stores} - plain


CONTROL_OPERATIONS = (
    warp.Let, warp.Loop, warp.Forever, warp.Break, warp.Trap, warp.Branch, warp.Pipeline,
    warp.Await, warp.BarSync, warp.WarpgroupSync, warp.CpAsyncCommit, warp.CpAsyncWait, warp.WgmmaWait, warp.BulkWait,
    warp.ProxyFence, warp.RingAcquire, warp.RingFill, warp.RingWait, warp.RingRelease, warp.RingDrain, warp.Advance,
    warp.ClusterArrive, warp.ClusterWait, warp.GridSync, warp.GridControl, warp.PingPongWait, warp.PingPongPass,
    warp.Arrive, warp.CopiesArrive, warp.TensorArrive, warp.ExpectBytes, warp.BarrierWait, warp.NamedBarrier,
    warp.SetRegisters, warp.TensorFence, warp.TensorWait,
)  # fmt: skip
"""Control flow, waits and signals: `warp.scalar_reads` has what their scalars read. All others touch memory."""


def effects_without_scalars(op: Operation) -> tuple[set[str], set[str], str | None, set[str]]:
    """Return reads, writes, queue or None, and asynchronous proxy's buffers of an operation, without its scalars'
    reads.
    Raises `InternalError` for an unknown operation."""
    op = warp.as_known_operation(op)
    if isinstance(op, CONTROL_OPERATIONS):
        return set(), set(), None, set()
    match op:
        case warp.Elementwise(nest=nest):
            inside = list(tile.walk_statements(nest.body))
            writes = {s.buffer.name for s in inside if isinstance(s, tile.Store)}
            loads = [load for stmt in inside for load in tile.walk_loads(stmt)]
            if op.copy_bytes:  # a thread reads its own registers at once
                return {ld.buffer.name for ld in loads if ld.buffer.scope != "local"}, writes, "cp.async", set()
            return {load.buffer.name for load in loads}, writes, None, set()
        case warp.CpAsync(source=s, destination=into):
            return {s.buffer.name}, {into.buffer.name}, "cp.async", set()
        case warp.TmaLoad(destination=d):
            return set(), {d.name}, None, {d.name}
        case warp.TryCancel(answer=d):
            return set(), {d.name}, None, {d.name}
        case warp.TensorMma(a=a, b=b, c=c):
            return {a.name, b.name}, {c.name}, None, {a.name, b.name}
        case warp.TensorCopy(source=s, destination=d):
            return {s.name}, {d.name}, None, {s.name}
        case warp.TmaStore(source=s):
            return {s.name}, set(), "bulk", {s.name}
        case warp.StoreMatrix(source=s, destination=d) | warp.TransposeMatrix(source=s, destination=d):
            return {s.name}, {d.name}, None, set()
        case warp.LoadMatrix(source=region, destination=d):
            return {region.buffer.name}, {d.name}, None, set()
        case warp.Mma(a=a, b=b, c=c, metadata=e):
            return {a.buffer.name, b.buffer.name, *([e.name] if e else [])}, {c.name}, None, set()
        case warp.Wgmma(a=a, b=b, c=c, metadata=e):
            factors = {a.buffer.name, b.buffer.name}
            return factors | ({e.name} if e else set()), {c.name}, "wgmma", factors
        case warp.TensorLoad(source=s, destination=d):
            return {s.name}, {d.name}, "tcgen05.ld", set()
        case warp.TensorStore(source=s, destination=d):
            return {s.name}, {d.name}, "tcgen05.st", set()
        case (
            warp.Reduce(source=s, destination=d, scratch=scratch) | warp.Scan(source=s, destination=d, scratch=scratch)
        ):
            return {s.name}, {d.name} | ({scratch.name} if scratch else set()), None, set()
        case _:
            assert_never(op)
