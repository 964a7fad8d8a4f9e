"""Whole kernels that share their work out: roles with barriers or pipelines between them, tensor memory, tiles that
stay with a block."""

from __future__ import annotations

from math import prod

from drawing.control import attempt, body
from drawing.kernel import Cannot, Kernel, Loop, Tile
from drawing.statements import Drawer, load_tile, store_tile


def _operands(k: Kernel) -> tuple[Tile, Tile, Tile]:
    dtype = k.pick(("float16", "bfloat16"))
    m, n, deep = k.pick((64, 128)), k.pick((16, 32, 64)), k.pick((32, 64))
    a, b = k.tile((m, deep), dtype, "shared"), k.tile((deep, n), dtype, "shared")
    return a, b, k.tile((m, n), "float32", "fragment")


def _use(k: Kernel, a: str, b: str, c: Tile) -> None:
    k.emit(f"T.gemm({a}, {b}, {c.name})")


def barriers(k: Kernel) -> None:
    """One role loads, another one computes; threads arrive at barriers, which say whose turn it is."""
    k.threads = 256
    a, b, c = _operands(k)
    ready, done, trip_count = k.new("ready"), k.new("done"), k.pick((1, 2, 3, 4))
    first, second = k.pick(((0, 1), (1, 0)))
    k.emit(f"{ready} = T.alloc_barrier(128)", f"{done} = T.alloc_barrier(128)")
    wait, arrive = k.pick((("barrier_wait", "barrier_arrive"), ("mbarrier_wait_parity", "mbarrier_arrive")))
    with k.inside(f"with T.{k.pick(('ws', 'WarpSpecialize'))}({second}):"):
        if k.target != "sm_80" and k.chance(0.4):
            k.emit(k.pick(("T.inc_max_nreg(168)", "T.set_max_nreg(168, 1)")))
        k.emit(f"T.clear({c.name})")
    k.loops.append(Loop(k.new("k"), trip_count))
    with k.inside(f"for {k.loops[-1].name} in T.serial({trip_count}):"):
        with k.inside(f"with T.ws({first}):"):
            k.emit(f"T.{wait}({done}, ({k.loops[-1].name} + 1) % 2)")
            load_tile(k, a, a.dtype)
            load_tile(k, b, b.dtype)
            if k.chance(0.3):
                with k.inside(f"for i, j in T.Parallel({a.shape[0]}, {a.shape[1]}):"):
                    k.emit(f"{a.name}[i, j] = {a.name}[i, j] + 1")
            k.emit(f"T.{arrive}({ready})")
        with k.inside(f"with T.ws({second}):"):
            k.emit(f"T.{wait}({ready}, {k.loops[-1].name} % 2)")
            if k.chance(0.25):
                with k.inside(f"for i, j in T.Parallel({a.shape[0]}, {a.shape[1]}):"):
                    k.emit(f"{a.name}[i, j] = {a.name}[i, j] * 2")
            _use(k, a.name, b.name, c)
            k.emit(f"T.{arrive}({done})")
    k.loops.pop()
    with k.inside(f"with T.ws({second}):"):
        store_tile(k, c)


def ring(k: Kernel) -> None:
    """The same with several versions of the tiles, loaded by TMA."""
    if k.target == "sm_80":
        raise Cannot
    k.threads = 256
    stages, trip_count = k.pick((1, 2, 3)), k.pick((1, 2, 3, 4))
    dtype = k.pick(("float16", "bfloat16", "float32"))
    rows, columns = k.pick((16, 32, 64)), k.pick((32, 64))
    tile = k.tile((stages, rows, columns), dtype, "shared")
    total = k.tile((rows, columns), "float32", "fragment")
    part = k.tile((rows, columns), dtype, "fragment")
    full, empty, at = k.new("full"), k.new("empty"), k.new("k")
    k.emit(f"{full} = T.alloc_barrier([128] * {stages})", f"{empty} = T.alloc_barrier([128] * {stages})")
    with k.inside("with T.ws(0):"):
        k.emit(f"T.clear({total.name})")
    source = k.tensor((trip_count * rows, columns), dtype)
    with k.inside(f"for {at} in T.serial({trip_count}):"):
        with k.inside("with T.ws(1):"):
            k.emit(f"T.mbarrier_wait_parity({empty}[{at} % {stages}], (({at} // {stages}) & 1) ^ 1)")
            k.emit(
                f"T.tma_copy({source}[{at} * {rows} : ({at} + 1) * {rows}, 0:{columns}], "
                f"{tile.name}[{at} % {stages}, :, :], barrier={full}[{at} % {stages}])"
            )
            k.emit(f"T.mbarrier_arrive({full}[{at} % {stages}])")
        with k.inside("with T.ws(0):"):
            k.emit(f"T.mbarrier_wait_parity({full}[{at} % {stages}], ({at} // {stages}) & 1)")
            k.emit(f"T.copy({tile.name}[{at} % {stages}, :, :], {part.name})")
            with k.inside(f"for i, j in T.Parallel({rows}, {columns}):"):
                k.emit(f"{total.name}[i, j] += {part.name}[i, j]")
            k.emit(f"T.mbarrier_arrive({empty}[{at} % {stages}])")
    with k.inside("with T.ws(0):"):
        store_tile(k, total)


def pipelines(k: Kernel) -> None:
    """Tiles handed from one role to the next by pipelines: loaded, multiplied, and at times stored apart."""
    has_store = k.chance(0.5)
    k.threads = 384 if has_store else 256
    a, b, c = _operands(k)
    stages, trip_count = k.pick((1, 2, 3)), k.pick((1, 2, 3, 5))
    source, result = k.new("inputs"), k.new("outputs")
    k.emit(f"{source} = T.InputTilePipeline(({a.name}, {b.name}), stages={stages})")
    if has_store:
        out = k.tile(c.shape, k.pick(("float16", "float32")), "shared")
        k.emit(f"{result} = T.OutputTilePipeline({out.name}, stages={k.pick((1, 2))})")
    loop = Loop(k.new("k"), trip_count)
    with k.inside("with T.ws(1):"), k.inside(f"for {loop.name} in T.serial({trip_count}):"):
        k.loops.append(loop)
        if k.chance(0.5):
            with k.inside(f"with {source}.producer().acquire() as tiles:"):
                _loads(k, a, b, "tiles")
        else:
            k.emit(f"stage = {source}.acquire_producer()")
            _loads(k, a, b, "stage")
            k.emit("stage.release()")
        k.loops.pop()
    with k.inside("with T.ws(0):"):
        k.emit(f"T.clear({c.name})")
        with k.inside(f"for {loop.name} in T.serial({trip_count}):"):
            if k.chance(0.5):
                with k.inside(f"with {source}.consumer().acquire() as (a, b):"):
                    _use(k, "a", "b", c)
            else:
                k.emit(f"stage = {source}.acquire_consumer()")
                _use(k, f"stage.{a.name}", f"stage.{b.name}", c)
                k.emit("stage.release()")
        if has_store:
            with k.inside(f"with {result}.producer().acquire() as made:"):
                k.emit(f"T.copy({c.name}, made.{out.name})")
        else:
            store_tile(k, c)
    if has_store:
        with k.inside("with T.ws(2):"), k.inside(f"with {result}.consumer().acquire() as made:"):
            starts, extents = k.own(out.shape)
            name = k.tensor(extents, out.dtype, "O")
            k.emit(f"T.copy(made.{out.name}, {name}[{', '.join(starts)}])")


def _loads(k: Kernel, a: Tile, b: Tile, stage: str) -> None:
    for tile in (a, b):
        load_tile(k, tile, tile.dtype)
        k.lines[-1] = k.lines[-1].replace(f", {tile.name}", f", {stage}.{tile.name}")


def tensor_memory(k: Kernel) -> None:
    """A sum in the tensor memory of sm_100a."""
    if k.target != "sm_100a":
        raise Cannot
    k.threads = k.pick((128, 256))
    dtype = k.pick(("float16", "bfloat16", "float8_e4m3fn", "float32"))
    m, n = k.pick((64, 128, 128)), k.pick((16, 32, 64))
    deep = k.pick((64, 128)) if "8" in dtype else k.pick((32, 64))
    transposed = dtype not in ("float16", "bfloat16") or k.chance(0.5)
    a, b = k.tile((m, deep), dtype, "shared"), k.tile((n, deep) if transposed else (deep, n), dtype, "shared")
    c, trip_count, name = k.tile((m, n), "float32", "fragment"), k.pick((1, 2, 3)), k.new("_t")
    k.emit(f'{name} = T.alloc_tmem([{m}, {n}], "float32")')
    is_cleared = k.chance(0.4)
    if is_cleared:
        k.emit(f"T.clear({name})")
    loop = Loop(k.new("k"), trip_count)
    k.loops.append(loop)
    with k.inside(f"for {loop.name} in T.Pipelined({trip_count}, num_stages={k.pick((1, 2, 3))}):"):
        load_tile(k, a, dtype)
        load_tile(k, b, dtype)
        clear = "" if is_cleared else f", clear_accum={loop.name} == 0"
        k.emit(f"T.gemm({a.name}, {b.name}, {name}{', transpose_B=True' if transposed else ''}{clear})")
    k.loops.pop()
    k.emit(f"T.copy({name}, {c.name})")
    k.ready.add(c.name)
    body(k, k.pick((0, 1)))
    store_tile(k, c)


def persistent(k: Kernel) -> None:
    """Blocks that stay, and go over the tiles of a matrix."""
    down, across, workers = k.pick((1, 2, 3, 4)), k.pick((1, 2, 4)), k.pick((1, 2, 3))
    k.grid = (workers,)
    if k.chance(0.5):
        row, column = k.new("m"), k.new("n")
        group = k.pick(("", ", group_size=2"))
        head = f"for {row}, {column} in T.Persistent([{down}, {across}], {workers}, bx{group}):"
        tail = None
    else:
        name = k.new("tiles")
        more = k.pick(("", ", swizzle_size=2", ", column_major=False"))
        k.emit(f"{name} = T.PersistentTileScheduler({down}, {across}, num_workers={workers}{more})")
        k.emit(f"{name}.init(bx)")
        row, column = f"{name}.m_idx", f"{name}.n_idx"
        head, tail = f"while {name}.valid():", f"{name}.next_tile()"
    k.taken = [Loop(row, down), Loop(column, across)]
    with k.inside(head):
        body(k, k.pick((1, 2, 3)))
        tiles = [t for t in k.tiles if t.name in k.ready and not t.name.startswith("_")]
        if tiles:
            store_tile(k, k.pick(tiles))
        if tail:
            k.emit(tail)
    k.ready.clear()
    k.tiles = [t for t in k.tiles if not t.name.startswith("_")]


WHOLE: tuple[Drawer, ...] = (barriers, ring, pipelines, pipelines, tensor_memory, persistent, persistent)


def whole(k: Kernel) -> bool:
    """A kernel of one of these kinds; whether it may be one of them."""
    return attempt(k, k.pick(WHOLE)) and prod(k.grid) > 0
