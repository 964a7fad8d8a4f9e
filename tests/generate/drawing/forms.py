"""What there is beside tiles: arrays of threads, accesses of many bits, convolutions, clusters, macros."""

from __future__ import annotations

from math import prod

from drawing.kernel import Cannot, Kernel
from drawing.statements import Drawer, store_tile

WIDTHS = {"ldg": (32, 64, 128, 256), "stg": (32, 64, 128, 256), "lds": (32, 64, 128), "sts": (32, 64, 128)}
MACRO = ("@T.macro", "def twice(x):", "    return x + x", "")


def number(k: Kernel) -> str:
    """Of the block, in the grid."""
    return "bx" if len(k.grid) == 1 else f"(bx * {k.grid[1]} + by)"


def wide(k: Kernel) -> None:
    """Accesses of so many bits, from a tensor or a shared tile to one."""
    if k.loops or k.is_conditional:
        raise Cannot
    dtype, count = k.pick(("float32", "int32", "uint32")), k.pick((8, 16, 32))
    bits = k.pick((32, 64, 128))
    each = bits // 32
    source = k.tensor((count * each,), dtype)
    tile = k.tile((count * each,), dtype, "shared")
    target = k.tensor((prod(k.grid) * count * each,), dtype, "O")
    at = "i" if each == 1 else f"i * {each}"
    with k.inside(f"for i in T.Parallel({count}):"):
        k.emit(f"T.sts{bits}({tile.name}[{at}], T.ldg{bits}({source}[{at}]))")
    with k.inside(f"for i in T.parallel({count}):"):
        k.emit(f"T.stg{bits}({target}[{number(k)} * {count * each} + {at}], T.lds{bits}({tile.name}[{at}]))")
    if k.chance(0.3) and count % 2 == 0:
        longest = k.tensor((prod(k.grid) * 64,), dtype, "O")
        source = k.tensor((64,), dtype)
        with k.inside("for i in T.Parallel(8):"):
            k.emit(f"T.stg256({longest}[{number(k)} * 64 + i * 8], T.ldg256({source}[i * 8]))")
    k.ready.add(tile.name)


def local(k: Kernel) -> None:
    """An array of each thread."""
    if k.loops or k.is_conditional:
        raise Cannot
    dtype, each = k.pick(("float32", "float16", "int32", "int8")), k.pick((1, 2, 4, 8))
    name, tx = k.new("x"), k.new("tx")
    source = k.tensor((k.threads * each,), dtype)
    target = k.tensor((prod(k.grid) * k.threads * each,), dtype, "O")
    k.emit(f"{name} = T.alloc_local([{each}], {dtype!r})", f"{tx} = {k.pick(THREADS)}")
    with k.inside(f"for v in {k.pick(('T.serial', 'T.vectorized', 'T.Vectorized', 'T.unroll'))}({each}):"):
        k.emit(f"{name}[v] = {source}[{tx} * {each} + v]")
    with k.inside(f"for v in T.serial({each}):"):
        k.emit(f"{name}[v] = {name}[v] + {name}[{k.pick(('v', '0'))}]")
        k.emit(f"{target}[({number(k)} * {k.threads} + {tx}) * {each} + v] = {name}[v]")


THREADS = (
    "T.get_thread_binding()", "T.get_thread_binding(0)", "T.get_thread_bindings()[0]",
    "T.get_warp_idx() * 32 + T.get_lane_idx()", "T.get_warp_idx_sync() * 32 + T.get_lane_idx()",
    "T.get_warp_group_idx() * 128 + T.get_thread_binding() % 128",
)  # fmt: skip
QUERIES = (
    "T.get_block_binding(0)", "T.get_block_bindings()[0]", "T.get_block_extent(0)", "T.get_block_extents()[0]",
    "T.get_thread_extent(0)", "T.get_thread_extents()[0]",
)  # fmt: skip


CLUSTERS = ("T.block_rank_in_cluster()", "T.get_cluster_block_nums()")


def query(k: Kernel) -> None:
    """Where the block is, and how large all is."""
    target = k.tensor((*reversed(k.grid), 4), "int32", "O")
    asked = k.pick(CLUSTERS if k.has_cluster else QUERIES)
    with k.inside("for i in T.Parallel(4):"):
        k.emit(f"{target}[{', '.join(b.name for b in reversed(k.blocks))}, i] = {asked} + i")
    if k.has_cluster and k.depth == 2:
        k.emit(*k.pick((("T.cluster_sync()",), ("T.cluster_arrive()", "T.cluster_wait()"),
                        ("T.cluster_arrive_relaxed()", "T.cluster_wait()"))))  # fmt: skip


def macro(k: Kernel) -> None:
    """Statements and expressions of their own."""
    k.above += [line for line in MACRO if line not in k.above]
    tile = k.filled(lambda t: t.dtype in ("float32", "int32", "float16") and t.name not in k.steady)
    names = "ijl"[: len(tile.shape)]
    head = f"for {', '.join(names)} in T.Parallel({', '.join(map(str, tile.shape))}):"
    with k.inside(head):
        k.emit(f"{tile.name}[{', '.join(names)}] = twice({tile.name}[{', '.join(names)}])")


def im2col(k: Kernel) -> None:
    """What a filter sees."""
    side, channels, taps = k.pick((4, 5, 8)), k.pick((8, 16, 32)), k.pick((1, 2, 3))
    stride, dilation, pad = k.pick((1, 1, 2)), k.pick((1, 1, 2)), k.pick((0, 1))
    if (side + 2 * pad - dilation * (taps - 1) - 1) < 0:
        raise Cannot
    dtype = k.pick(("float16", "float32"))
    tile = k.tile((k.pick((16, 32)), k.pick((channels, 2 * channels, 24))), dtype, "shared")
    source = k.tensor((k.pick((1, 2)), side, side, channels), dtype)
    step, column = k.pick(("0", k.pick(k.counters()).name)), k.pick(("0", "1"))
    word = k.pick(("im2col", "im2col", "c2d_im2col"))
    k.emit(f"T.{word}({source}, {tile.name}, {step}, {column}, {taps}, {stride}, {dilation}, {pad})")
    k.ready.add(tile.name)
    store_tile(k, tile)


FORMS: tuple[tuple[int, Drawer], ...] = ((1, wide), (1, local), (2, query), (1, macro), (1, im2col))
