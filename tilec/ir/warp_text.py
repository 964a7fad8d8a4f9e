"""Warp IR as text for people: the operations of each role, one per line, with the versions they touch."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile, warp
from tilec.ir.layout import Fragment, SharedLayout
from tilec.ir.text import show_declared, show_expr, show_extent, show_region, show_store
from tilec.ir.warp import Operation, Program


def show_program(program: Program) -> str:
    """Return a warp program as text for people: its memory and rings, then each role's operations, one per line."""
    return "\n".join(_write_program_lines(program)) + "\n"


def _write_program_lines(program: Program) -> Iterator[str]:
    """Yield the lines of a program: launch, tensor maps, tiles, rings, barriers, then each role with its operations."""
    names = ", ".join([p.name for p in program.params] + [m.name for m in program.maps])
    grid = " x ".join(map(show_extent, program.grid))
    yield f"program {program.name}({names})"
    yield f"  {grid} blocks of {program.threads} threads, {program.smem_bytes} bytes of shared memory"
    if program.cluster != (1, 1, 1):
        yield f"  clusters of {' x '.join(map(str, program.cluster))}"
    if program.begins_early:
        yield "  overlaps the previous grid (PDL)"
    for tensor_map in program.maps:
        box = ", ".join(map(str, tensor_map.box))
        corners = tensor_map.corners
        im2col = f", im2col {corners.lower}..{corners.upper} by {corners.stride}" if corners else ""
        boxes = f"boxes of [{box}], swizzle {tensor_map.swizzle}{im2col}"
        yield f"  map {tensor_map.name}: {tensor_map.tensor.name}, {boxes}"
    for shown in program.shared:
        versions = f", {shown.depth} versions {shown.stride} bytes apart" if shown.depth > 1 else ""
        over = ", over the rings" if shown.over_rings else ""
        over += f", may reuse {', '.join(shown.reuses)}" if shown.reuses else ""
        yield f"  shared {show_declared(shown.buffer)} at {shown.offset}: {show_shared(shown.layout)}{versions}{over}"
    for held in program.tensor:
        versions = f", {held.depth} versions" if held.depth > 1 else ""
        yield f"  tmem {show_declared(held.buffer)} at column {held.offset}: {held.columns} columns{versions}"
    for buffer, layout in program.fragments:
        yield f"  fragment {show_declared(buffer)}: {show_fragment(layout)}"
    for ring in program.rings:
        shared = f", shared along {' and '.join(ring.shared)}" if ring.shared else ""
        pair = ", of a pair of blocks" if ring.paired else ""
        heard = f", multicast to {ring.heard_by} blocks" if ring.heard_by > 1 else ""
        yield f"  ring {ring.name}: depth {ring.depth}{_format_ring_barriers(ring)}{shared}{pair}{heard}"
    for made in program.barriers:
        yield f"  barriers {made.name}: {', '.join(map(str, made.counts))} arrivals"
    for role in program.all_roles:
        yield ""
        registers = f", {role.registers} registers" if role.registers else ""
        single = ", one thread" if role.single_thread else ""
        barriers = role.ping_pong_barriers
        ping_pong = f", warpgroups in ping-pong by barriers {barriers[0]} to {barriers[-1]}" if barriers else ""
        warps = f"warps {role.first_warp} to {role.first_warp + role.warps - 1}"
        yield f"  role {role.name}: {warps}{registers}{single}{ping_pong}"
        yield from _write_body_lines(role.body, "    ")


def _format_ring_barriers(ring: warp.Ring) -> str:
    """Return text for what fills a ring's versions and how many arrivals release them; empty for a ring without
    barriers."""
    if not ring.has_barriers:
        return ""
    filled = f"{ring.bytes} bytes a version" if ring.bytes else f"{ring.fills} {ring.by}s fill it"
    return f", {filled}, {'one thread releases' if ring.arrivals == 1 else f'{ring.arrivals} {ring.by}s release'} it"


def show_shared(layout: SharedLayout) -> str:
    """Return a shared tile's layout in words: panels or row-major, swizzle, copies; or the author's placement."""
    if layout.placement is not None:
        return f"place {show_expr(layout.placement.place)} of {layout.placement.size}"
    panels = f"{layout.panels} panels of {layout.panel} columns" if layout.panels > 1 else "row-major"
    swizzle = f", swizzle {layout.swizzle}" if layout.swizzle else ""
    copies = f", a copy for each of {layout.copies} warpgroups" if layout.copies > 1 else ""
    return f"{panels}{swizzle}{copies}"


def show_fragment(layout: Fragment) -> str:
    """Return a fragment's thread and register digits as text, least significant first; digits of size 1 are left out.
    `size` values that move `stride` along dimension `d` are `size·d(stride)`."""
    sides = []
    for axes in (layout.threads, layout.registers):
        digits = [
            f"{a.size}·{'xyzuvw'[a.dim]}({a.stride})" if a.dim >= 0 else f"{a.size}·replica" for a in axes if a.size > 1
        ]
        sides.append(" ".join(digits) or "1")
    return f"threads {sides[0]}, registers {sides[1]}"


def _write_body_lines(body: tuple[Operation, ...], indent: str, heading: str = "") -> Iterator[str]:
    """Yield the lines of operations and their bodies, with a comment wherever the pipeline position, first `heading`,
    changes.
    """
    around = heading
    for op in body:
        if op.moment is not None and heading != (heading := _format_position(op.moment)):
            yield f"{indent}# {heading}"
        elif op.moment is None and heading != around:
            heading = around
            yield f"{indent}# end of the pipeline"
        match op:
            case warp.Loop(var=var, start=start, stop=stop, step=step, phases=phases, body=inner):
                steps = f", {step}" if step != 1 else ""
                if (following := op.following) is None:
                    yield f"{indent}for {var.name} in range({show_expr(start)}, {show_expr(stop)}{steps}):"
                else:
                    goes_on = f"then {following.value.name} while {following.is_there.name}"
                    yield f"{indent}for {var.name} = {show_expr(start)}, {goes_on}, below {show_expr(stop)}:"
                deeper = indent + "  "
                for phase in phases:
                    yield f"{deeper}while {var.name} < {show_expr(phase.until)}:"
                    yield from _write_body_lines(phase.body, deeper + "  ", heading)
                if phases:
                    yield f"{deeper}then:"
                yield from _write_body_lines(inner, deeper + "  " * bool(phases), heading)
            case warp.Forever(body=inner):
                yield f"{indent}repeat:"
                yield from _write_body_lines(inner, indent + "  ", heading)
            case warp.Pipeline(var=var, stages=stages, body=inner):
                yield f"{indent}pipeline over {var.name}, {stages + 1} stages:"
                yield from _write_body_lines(inner, indent + "  ")
            case warp.Branch(condition=condition, then=then, orelse=orelse):
                yield f"{indent}if {show_expr(condition)}:"
                yield from _write_body_lines(then, indent + "  ", heading)
                if orelse:
                    yield f"{indent}else:"
                    yield from _write_body_lines(orelse, indent + "  ", heading)
            case _:
                versions = f"  @ {', '.join(c.name for c in op.cursors)}" if op.cursors else ""
                remarks = [f"line {op.span.line}"] if op.span.line else []
                if op.moment is not None and op.moment.iteration is not None:
                    remarks.append(f"iteration {', '.join(_format_iterations(op.moment))}")
                if isinstance(op, warp.BarSync) and op.over:
                    remarks += [f"over {op.over}", *([f"after line {op.after.line}"] if op.after.line else [])]
                remark = f"  # {', '.join(remarks)}" if remarks else ""
                yield f"{indent}{_format_operation(op)}{versions}{remark}"


def _format_position(moment: warp.PipelinePosition) -> str:
    """Return the text for a position in a pipeline: its part and step; inside another pipeline, the outer one first."""
    part = "steady state" if moment.part == "steady" else f"{moment.part}, step {moment.step}"
    return part if moment.around is None else f"{_format_position(moment.around)}; over {moment.var.name}: {part}"


def _format_iterations(moment: warp.PipelinePosition) -> Iterator[str]:
    """Yield the iteration of each pipeline around, outer ones first: relative to a variable, or as `NAME = VALUE`."""
    if moment.around is not None:
        yield from _format_iterations(moment.around)
    if moment.iteration is not None:
        relative = any(part == moment.var for part in tile.walk_expr(moment.iteration))
        yield show_expr(moment.iteration) if relative else f"{moment.var.name} = {show_expr(moment.iteration)}"


def _format_barrier(barrier: warp.Barrier) -> str:
    """Return a barrier as `NAME[INDEX]`."""
    return f"{barrier.name}[{show_expr(barrier.index)}]"


def _format_block_suffix(block: tile.Expr | None) -> str:
    """Return ` of block RANK`; empty for no block."""
    return "" if block is None else f" of block {show_expr(block)}"


def _format_condition_suffix(condition: tile.Expr | None) -> str:
    """Return ` where CONDITION`; empty for no condition."""
    return "" if condition is None else f" where {show_expr(condition)}"


def _format_operand(part: tile.Region) -> str:
    """Return an operand's name if it is a whole buffer, else the region."""
    return part.buffer.name if part.is_whole else show_region(part)


_TEXTS: dict[type[Operation], str] = {
    warp.Trap: "trap",
    warp.Break: "break",
    warp.TensorCopy: "tcgen05.cp {op.destination.name} = {op.source.name}",
    warp.Reduce: "reduce_{op.kind} {op.destination.name} = {op.source.name} along {op.dim}",
    warp.Scan: "scan_{op.kind} {op.destination.name} = {op.source.name} along {op.dim}",
    warp.BarSync: "barrier {op.id}, {op.threads} threads",
    warp.WarpgroupSync: "barriers from {op.first} on, one for each warpgroup",
    warp.CpAsyncCommit: "cp_async commit",
    warp.CpAsyncWait: "cp_async wait, {op.pending} in flight",
    warp.WgmmaWait: "wgmma wait, {op.pending} in flight",
    warp.BulkWait: "tma_store wait, {op.pending} in flight",
    warp.ProxyFence: "fence to the asynchronous proxy",
    warp.TensorWait: "tcgen05.wait for every {op.what}",
    warp.TensorFence: "tcgen05.fence {op.what} a barrier",
    warp.RingAcquire: "acquire {op.cursor.name}",
    warp.RingWait: "wait for {op.cursor.name}",
    warp.RingDrain: "drain {op.cursor.ring}",
    warp.ClusterWait: "wait for the cluster",
    warp.GridSync: "wait for the grid at {op.counter}",
    warp.GridControl: "grid control: {op.what}",
    warp.PingPongWait: "wait for the ping-pong turn",
    warp.PingPongPass: "pass the ping-pong turn",
    warp.SetRegisters: "{op.count} registers",
}
"""The texts of operations that are shown by their fields alone."""


def _format_operation(op: Operation) -> str:
    """Return the text of an operation that has no body, without its versions and remarks."""
    match op:
        case warp.Let(var=var, value=value):
            return f"{var.name} = {show_expr(value)}"
        case warp.Elementwise(nest=nest, block=block):
            extents = ", ".join(map(str, nest.extents))
            stores = [show_store(s) for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store)]
            to = "" if block is None else f" in block {show_expr(block)} of the cluster"
            kind = f"cp_async.{op.copy_bytes} by threads" if op.copy_bytes else "elementwise"
            return f"{kind} ({extents}) {'; '.join(stores)}{to}"
        case warp.CpAsync(source=source, destination=destination, width=width):
            return f"cp_async.{width} {_format_operand(destination)} = {_format_source(source)}"
        case warp.TmaLoad(map=tensor_map, start=start, destination=destination, tap=tap):
            looks = f" + [{', '.join(map(show_expr, tap))}]" if tap else ""
            signals = f", signals {_format_barrier(op.barrier)}{_format_block_suffix(op.block)}" if op.barrier else ""
            to = f" with all along {op.shared}" if op.shared else ""
            box = f"{tensor_map.name}[{', '.join(map(show_expr, start))}]"
            if op.column is not None:
                return f"tma_load {op.panels} panels of {destination.name} from {show_expr(op.column)} = {box}{signals}"
            if op.four is not None:
                into = _format_tile_rows(destination, op.four)
                return f"tma_load {into} = {_map_rows(tensor_map, op.four, start)}{signals}"
            return f"tma_load {destination.name} = {box}{looks}{signals}{to}"
        case warp.TmaStore(map=tensor_map, start=start, source=source, atomic=atomic, parts=parts):
            by = f" by {parts} warpgroups apart" if parts > 1 else ""
            if op.four is not None:
                return f"tma_store {_map_rows(tensor_map, op.four, start)} = {_format_tile_rows(source, op.four)}"
            return f"tma_{atomic or 'store'} {tensor_map.name}[{', '.join(map(show_expr, start))}] = {source.name}{by}"
        case warp.StoreMatrix(source=source, destination=destination, column=column):
            part = f"[:, {column}:{column + destination.shape[-1]}]" if source.shape != destination.shape else ""
            return f"stmatrix {destination.name} = {source.name}{part}"
        case warp.TransposeMatrix(source=source, destination=destination, rows=rows, accumulated=accumulated):
            order = ", as accumulated" if accumulated else ""
            return f"transpose {destination.name} = {source.name} by {rows} rows of 16 bytes{order}"
        case warp.LoadMatrix(source=region, destination=d):
            return f"ldmatrix {d.name} = {show_region(region)}"
        case warp.Mma() | warp.Wgmma():
            a = _format_operand(op.a) + (".T" if op.transpose_a else "")
            b = _format_operand(op.b) + (".T" if op.transpose_b else "")
            sparse = f" ({op.metadata.name})" if op.metadata else ""
            kind = f".{op.nibbles}" if isinstance(op, warp.Mma) and op.nibbles else ""
            return f"{type(op).__name__.lower()}{kind} {op.c.name} {'=' if op.clear else '+='} {a}{sparse} @ {b}"
        case warp.TensorMma(a=a, b=b, c=c, clear=clear):
            left, right = a.name + ".T" * op.transpose_a, b.name + ".T" * op.transpose_b
            scaled = "" if op.scales is None else f", scaled by {op.scales.a.name} and {op.scales.b.name}"
            by = " by a pair of blocks" if op.paired else ""
            return f"tcgen05.mma {c.name} += {left} @ {right}{scaled}{by}, cleared if {show_expr(clear)}"
        case warp.TensorLoad(source=source, destination=destination, column=column):
            return f"tcgen05.ld {destination.name} = {_format_columns(source, column)}"
        case warp.TensorStore(source=source, destination=destination, column=column):
            return f"tcgen05.st {_format_columns(destination, column)} = {source.name}"
        case warp.Await(tiles=tiles, readers=readers, rendezvous=rendezvous):
            threads = " of all threads" if rendezvous else ""
            return f"await {', '.join(tiles)}{' and readers' if readers else ''}{threads}"
        case warp.RingFill(cursor=cursor, by_tensor_cores=later):
            for_now = " for now" if op.keeps and not op.cursors else ""
            return f"commit {cursor.name}{for_now}{' by tcgen05.commit' if later else ''}"
        case warp.RingRelease(cursor=cursor, by_tensor_cores=later):
            return f"release {cursor.name}{' by tcgen05.commit' if later else ''}"
        case warp.ClusterArrive(relaxed=relaxed):
            return f"arrive at the cluster's barrier{', relaxed' if relaxed else ''}"
        case warp.Advance(cursor=cursor, behind=behind):
            return f"advance {cursor.name}{f' to {behind.name}' if behind else ''}"
        case warp.Arrive(barrier=barrier, condition=condition, by_warps=by_warps, block=block):
            once = ", once a warp" if by_warps else ""
            where = _format_condition_suffix(condition)
            return f"arrive at {_format_barrier(barrier)}{_format_block_suffix(block)}{where}{once}"
        case warp.CopiesArrive(barrier=barrier, condition=condition):
            return f"cp_async arrive at {_format_barrier(barrier)}{_format_condition_suffix(condition)}"
        case warp.TensorArrive(barrier=barrier):
            return f"tcgen05.commit to {_format_barrier(barrier)}{' of both blocks' if op.paired else ''}"
        case warp.TryCancel(answer=answer, barrier=barrier):
            signals = f", signals {_format_barrier(barrier)}" if barrier is not None else ""
            return f"try_cancel to {answer.name}{signals}"
        case warp.ExpectBytes(barrier=barrier, bytes=announced, arrives=arrives):
            return f"expect {announced} bytes at {_format_barrier(barrier)}{', arrive' if arrives else ''}"
        case warp.BarrierWait(barrier=barrier, parity=parity, unless=unless):
            known = "" if unless is None else f", unless {show_expr(unless)}"
            return f"wait for {_format_barrier(barrier)}, parity {show_expr(parity)}{known}"
        case warp.NamedBarrier(id=number, threads=threads, waits=waits):
            return f"{'meet' if waits else 'arrive'} at named barrier {number}, {threads} threads"
        case _:
            return _TEXTS.get(type(op), type(op).__name__).format(op=op)


def _format_tile_rows(shown: tile.Buffer, four: warp.FourRows) -> str:
    """Return the four rows of a tile as `NAME[AT:+4, :]`."""
    return f"{shown.name}[{show_expr(four.at)}:+{len(four.rows)}, :]"


def _map_rows(tensor_map: warp.TensorMap, four: warp.FourRows, start: tuple[tile.Expr, ...]) -> str:
    """Return the rows and first column of a tensor map that a gather or scatter touches, as `MAP[(ROWS), COLUMN]`."""
    return f"{tensor_map.name}[({', '.join(map(show_expr, four.rows))}), {show_expr(start[-1])}]"


def _format_source(source: tile.Region | warp.Gather) -> str:
    """Return the source of a cp.async as text: a region, or the element of a gather with its condition."""
    if isinstance(source, tile.Region):
        return show_region(source)
    element = f"{source.buffer.name}[{', '.join(map(show_expr, source.indices))}]"
    return f"{element} if {show_expr(source.condition)}"


def _format_columns(shown: tile.Buffer, column: tile.Expr) -> str:
    """Return a tile's name, with the column where its columns begin unless that is 0."""
    return shown.name if column == tile.int32_const(0) else f"{shown.name} from column {show_expr(column)}"
