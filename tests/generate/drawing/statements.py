"""Statements on tiles: copies, nests, reductions, scans and what else there is beside products and control."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from drawing.expressions import Nest, extents_of, variables_of
from drawing.kernel import FLOATS, INTEGERS, NIBBLES, SMALL, Cannot, Kernel, Loop, Scope, Tile

Drawer = Callable[[Kernel], None]


def whole(tile: Tile) -> str:
    return tile.name


def place(name: str, starts: list[str], extents: tuple[int, ...], is_sliced: bool) -> str:
    """A box of a tensor by where it begins, or by slices."""
    if not is_sliced:
        return f"{name}[{', '.join(starts)}]"
    slices = [f"{s} : {s} + {e}" if e > 1 or len(extents) == 1 else s for s, e in zip(starts, extents, strict=True)]
    return f"{name}[{', '.join(slices)}]"


# ---- copies ----------------------------------------------------------------------------------------------------------


def load(k: Kernel) -> None:
    """A tensor, or a box of one that may go over its edge, to a tile."""
    dtype = k.dtype()
    load_tile(k, k.target_of(k.shape(dtype), dtype))


def load_tile(k: Kernel, tile: Tile, dtype: str | None = None) -> None:
    if len(k.parameters) > 7:
        raise Cannot
    of = dtype or (tile.dtype if k.chance(0.8) else k.dtype())
    step = 2 if of in NIBBLES or tile.dtype in NIBBLES else 1
    starts, extents = [], []
    for at, extent in enumerate(tile.shape):
        start, last = k.start(extent, step if at == len(tile.shape) - 1 else 1)
        starts.append(start)
        short = k.pick((0, 0, 0, 0, 1, 2, 5))
        size = max(last + extent + k.pick((0, 0, 0, 8)) - short, 1)
        extents.append(-(-size // step) * step if at == len(tile.shape) - 1 else size)
    if len(tile.shape) < 3 and k.chance(0.2):
        counter = k.pick(k.counters())
        starts.insert(0, counter.name)
        extents.insert(0, max(counter.extent, 1))
    name = k.tensor(tuple(extents), of)
    is_whole = tuple(extents) == tile.shape and all(s == "0" for s in starts)
    shape = (1,) * (len(starts) - len(tile.shape)) + tile.shape
    source = name if is_whole and k.chance(0.7) else place(name, starts, shape, k.chance(0.3))
    word = "T.copy"
    if tile.scope == "shared" and of == tile.dtype and k.chance(0.06):
        word = "T.async_copy"
    more = k.pick(("",) * 8 + (", disable_tma=True", ", coalesced_width=1", ", eviction_policy='evict_first'"))
    k.emit(f"{word}({source}, {whole(tile)}{more if word == 'T.copy' else ''})")
    k.ready.add(tile.name)


def store(k: Kernel) -> None:
    store_tile(k, k.filled())


def store_tile(k: Kernel, tile: Tile) -> None:
    """To a box of a tensor that this block and iteration have for themselves."""
    dtype = tile.dtype if k.chance(0.8) else k.dtype()
    shape = tile.shape
    if (dtype in NIBBLES) != (tile.dtype in NIBBLES) and shape[-1] % 2:
        dtype = tile.dtype
    starts, extents = k.own(shape)
    if dtype not in NIBBLES and extents[-1] > 2 and k.chance(0.15):
        extents = (*extents[:-1], extents[-1] - 1)  # the last column is dropped
    name = k.tensor(extents, dtype, "O")
    full = (1,) * (len(starts) - len(shape)) + shape
    k.emit(f"T.copy({tile.name}, {place(name, starts, full, k.chance(0.3))})")


def move(k: Kernel) -> None:
    """A tile to another one, of another type at times."""
    source = k.filled()
    dtype = source.dtype if k.chance(0.6) else k.dtype()
    if dtype in NIBBLES and source.shape[-1] % 2:
        raise Cannot
    into_tensor_memory = k.target == "sm_100a" and not k.loops and k.chance(0.05)
    target = k.target_of(source.shape, dtype, "tmem" if into_tensor_memory else None)
    if target == source:
        raise Cannot
    k.emit(f"T.copy({source.name}, {target.name})")
    k.ready.add(target.name)


def move_part(k: Kernel) -> None:
    """A box of a shared tile to a tile, or a tile to a box of one."""
    tile = k.filled(lambda t: t.scope == "shared")
    starts, extents = [], []
    for at, extent in enumerate(tile.shape):
        step = 2 if at == len(tile.shape) - 1 and tile.dtype in NIBBLES else 1
        size = k.rng.randint(1, extent // step) * step
        start = k.rng.randint(0, (extent - size) // step) * step
        starts.append(str(start))
        extents.append(size)
    slices = ", ".join(f"{s} : {int(s) + e}" for s, e in zip(starts, extents, strict=True))
    shape = tuple(extents)
    if k.chance(0.6) or tile.name in k.steady:
        other = k.target_of(shape, tile.dtype)
        if other == tile:
            raise Cannot
        k.emit(f"T.copy({tile.name}[{slices}], {other.name})")
        k.ready.add(other.name)
    else:
        other = k.filled(lambda t: t.shape == shape and t != tile)
        k.emit(f"T.copy({other.name}, {tile.name}[{slices}])")


def fill(k: Kernel) -> None:
    dtype = k.dtype()
    tile = k.target_of(k.shape(dtype), dtype)
    if k.chance(0.4):
        k.emit(f"T.clear({tile.name})")
    else:
        value = k.pick(("1", "3", "2.5" if dtype in FLOATS else "2", "-1" if not dtype.startswith("u") else "7"))
        k.emit(f"T.fill({tile.name}, {'True' if dtype == 'bool' else value})")
    k.ready.add(tile.name)


def fill_part(k: Kernel) -> None:
    tile = k.filled(lambda t: t.scope == "shared" and t.name not in k.steady and t.dtype != "bool")
    step = 2 if tile.dtype in NIBBLES else 1
    last = tile.shape[-1]
    size = k.rng.randint(1, last // step) * step
    head = "".join(f"0:{e}, " for e in tile.shape[:-1])
    k.emit(f"T.fill({tile.name}[{head}{last - size} : {last}], 2)")


def transpose(k: Kernel) -> None:
    source = k.filled(lambda t: t.scope == "shared" and len(t.shape) == 2 and t.dtype not in NIBBLES)
    target = k.target_of(source.shape[::-1], source.dtype, "shared")
    if target == source:
        raise Cannot
    k.emit(f"T.transpose({source.name}, {target.name})")
    k.ready.add(target.name)


def reshape(k: Kernel) -> None:
    """A view, through which a nest goes or a copy does."""
    if k.depth > 2:
        raise Cannot
    tile = k.filled(lambda t: t.dtype not in NIBBLES)
    size = tile.size
    columns = k.pick([c for c in (1, 2, 4, 8, 16, 32, size) if size % c == 0])
    shape = (size,) if columns == size else (size // columns, columns)
    name = k.new("_v")
    k.emit(f"{name} = T.{k.pick(('reshape', 'view'))}({tile.name}, {shape})")
    view = Tile(name, shape, tile.dtype, tile.scope)
    k.tiles.append(view)
    k.ready.add(name)
    if tile.name in k.steady:
        k.steady.add(name)


# ---- nests -----------------------------------------------------------------------------------------------------------


def nest(k: Kernel) -> None:
    """All elements of a box at once: a statement or several, some under conditions."""
    extents = extents_of(k)
    variables = variables_of(extents)
    kind = k.rng.random()
    is_tensor = kind > 0.75
    head = ", ".join(v.name for v in variables)
    more = k.pick(("",) * 12 + (", coalesced_width=2", ", coalesced_width=1", _loop_layout(k, extents)))
    marked = len(k.lines)
    with k.inside(f"for {head} in T.Parallel({', '.join(map(str, extents))}{more}):"):
        count = k.pick((1, 1, 1, 2, 3))
        written: list[str] = []
        for _ in range(count):
            if is_tensor:
                _set_tensor(k, variables)
            else:
                _set_tile(k, variables, written)
    if len(k.lines) == marked:
        raise Cannot
    k.ready |= set(written)


def _loop_layout(k: Kernel, extents: tuple[int, ...]) -> str:
    """Which thread has which element, where they can be dealt out evenly."""
    size = prod(extents)
    if len(extents) > 2 or size % k.threads:
        return ""
    each, names = size // k.threads, ", ".join("ij"[: len(extents)])
    number = "i" if len(extents) == 1 else f"(i * {extents[1]} + j)"
    told = k.pick((f"{number} // {each}, {number} % {each}", f"{number} % {k.threads}, {number} // {k.threads}"))
    return f", loop_layout=T.Fragment({list(extents)}, forward_fn=lambda {names}: ({told}))"


def _set_tile(k: Kernel, variables: list[Loop], written: list[str]) -> None:
    extents = tuple(v.extent for v in variables)
    dtype = k.dtype()
    if dtype in NIBBLES and extents[-1] % 2:
        dtype = "float16"
    tile = k.target_of(extents, dtype)
    if tile.name in written:
        raise Cannot
    index = ", ".join(v.name for v in variables)
    # A shared tile is read in other places than the own one only where this nest does not write it.
    inside = Nest(k, variables, (*written, tile.name))
    own = f"{tile.name}[{index}]"
    value = inside.value(tile.dtype, k.pick((0, 1, 1, 2, 3)))
    is_old = tile.name in k.ready
    if is_old and tile.dtype not in SMALL and k.chance(0.5):
        if k.chance(0.5):
            k.emit(f"{own} {k.pick(('+=', '-=', '*='))} {value}")
        elif tile.dtype in INTEGERS and k.chance(0.5):
            bits = f"{k.pick(('&=', '|=', '^='))} {value}"
            divisor = k.pick((3, 5) if tile.dtype.startswith("u") else (3, -3, -5))
            k.emit(f"{own} {k.pick((f'//= {divisor}', f'%= {divisor}', '>>= 1', '<<= 2', bits))}")
        else:
            k.emit(f"{own} = {own} + {value}")
    elif is_old and k.chance(0.4):
        with k.inside(f"if {inside.value('bool', 1)}:"):
            k.emit(f"{own} = {value}")
    elif k.chance(0.15):
        with k.inside(f"if {inside.value('bool', 1)}:"):
            k.emit(f"{own} = {value}")
        with k.inside("else:"):
            k.emit(f"{own} = {inside.value(tile.dtype, 1)}")
    elif k.chance(0.15):
        name = k.new("x")
        k.emit(f"{name} = {value}", f"{own} = {name}")
    else:
        k.emit(f"{own} = {value}")
    written.append(tile.name)


def _set_tensor(k: Kernel, variables: list[Loop]) -> None:
    dtype = k.dtype()
    if dtype in NIBBLES:
        dtype = "float32"
    inside = Nest(k, variables)
    value = inside.value(dtype, k.pick((0, 1, 2)))
    starts, extents = k.own(tuple(v.extent for v in variables))
    name = k.tensor(extents, dtype, "O")
    tail = starts[len(starts) - len(variables) :]
    index = starts[: len(starts) - len(variables)] + [
        v.name if s == "0" else f"{s} + {v.name}" for s, v in zip(tail, variables, strict=True)
    ]
    statement = f"{name}[{', '.join(index)}] = {value}"
    if k.chance(0.25):
        with k.inside(f"if {inside.value('bool', 1)}:"):
            k.emit(statement)
    else:
        k.emit(statement)


def vectorised(k: Kernel) -> None:
    """Neighbours that one thread moves together."""
    rows, lanes = k.pick((16, 32, 64)), k.pick((2, 4, 8))
    dtype = k.pick(("float16", "float32", "int8", "int32"))
    source = k.tensor((rows * lanes,), dtype)
    target = k.target_of((rows * lanes,), dtype, "shared")
    with (
        k.inside(f"for i in T.Parallel({rows}):"),
        k.inside(f"for v in T.{k.pick(('vectorized', 'Vectorized'))}({lanes}):"),
    ):
        k.emit(f"{target.name}[i * {lanes} + v] = {source}[i * {lanes} + v]")
    k.ready.add(target.name)


# ---- reductions and scans --------------------------------------------------------------------------------------------

ANY_KINDS = ("sum", "max", "min", "absmax", "abssum")
BIT_KINDS = ("bitand", "bitor", "bitxor")


def reduce(k: Kernel) -> None:
    source = k.filled(lambda t: t.dtype not in SMALL and "float8" not in t.dtype)
    kinds = ANY_KINDS + (BIT_KINDS if source.dtype in INTEGERS else ())
    kind = k.pick(kinds)
    dim = k.rng.randrange(len(source.shape))
    kept = tuple(e for i, e in enumerate(source.shape) if i != dim) or (1,)
    if len(kept) == len(source.shape) - 1 and k.chance(0.2):
        kept = tuple(1 if i == dim else e for i, e in enumerate(source.shape))
    target = k.target_of(kept, source.dtype)
    if target == source:
        raise Cannot
    shown = dim - len(source.shape) if k.chance(0.4) else dim
    clear = ""
    if target.name in k.ready and kind != "abssum" and k.chance(0.5):
        clear = ", clear=False"
    k.emit(f"T.reduce_{kind}({source.name}, {target.name}, dim={shown}{clear})")
    k.ready.add(target.name)


def scan(k: Kernel) -> None:
    source = k.filled(lambda t: t.dtype not in SMALL and "float8" not in t.dtype)
    kind, dim = k.pick(("cumsum", "cumsum", "cummax")), k.rng.randrange(len(source.shape))
    more = f"dim={dim}" + k.pick(("", ", reverse=True"))
    if k.chance(0.3) and source.name not in k.steady:
        k.emit(f"T.{kind}({source.name}, {more})")
        return
    target = k.target_of(source.shape, source.dtype)
    if target == source:
        raise Cannot
    k.emit(f"T.{kind}({source.name}, {target.name}, {more})")
    k.ready.add(target.name)


def reducer(k: Kernel) -> None:
    """A result that all threads build."""
    if k.depth > 2:
        raise Cannot
    source = k.filled(lambda t: len(t.shape) == 2 and t.dtype in ("float32", "int32", "float16"))
    rows, columns = source.shape
    op = k.pick(("sum", "max", "min") + (BIT_KINDS if source.dtype == "int32" else ()))
    name = k.new("r")
    along = k.pick((0, 1))
    replicated = k.pick(("", ", replication='all'"))
    k.emit(f"{name} = T.alloc_reducer(({source.shape[along]},), {source.dtype!r}, op={op!r}{replicated})")
    k.emit(f"T.reducer_init({name}{k.pick(('', ', 1'))})")
    with k.inside(f"for i, j in T.Parallel({rows}, {columns}):"):
        k.emit(f"T.reducer_update({name}[{'ij'[along]}], {source.name}[i, j])")
    target = k.target_of((source.shape[along],), source.dtype, "fragment")
    k.emit(f"T.finalize_reducer({name}, {target.name})")
    k.ready.add(target.name)


# ---- atomics ---------------------------------------------------------------------------------------------------------


def atomic_tile(k: Kernel) -> None:
    """All blocks and iterations add to one tensor, element by element."""
    tile = k.filled(lambda t: t.dtype in ("float32", "float16", "bfloat16", "float64", "int32", "uint32", "int64"))
    word = k.pick(("add", "add", "max", "min"))
    shape = tile.shape
    name = k.tensor(shape, tile.dtype if tile.dtype not in ("float16", "bfloat16") or k.chance(0.5) else "float32", "O")
    k.emit(f"T.atomic_{word}({name}[{', '.join('0' for _ in shape)}], {tile.name})")


def atomic_elements(k: Kernel) -> None:
    extents = extents_of(k)
    variables = variables_of(extents)
    dtype = k.pick(("float32", "int32", "uint32", "float64", "int64", "float16", "bfloat16", "uint64"))
    if prod(extents) > 512:  # of some types they are loops, which end one thread after the other
        raise Cannot
    inside = Nest(k, variables)
    value = inside.value(dtype, 1)
    word = k.pick(("add", "add", "max", "min") + (("or",) if dtype in ("int32", "uint32", "uint64", "int64") else ()))
    count = k.pick((1, 4, 16))
    name = k.tensor((count,), dtype, "O")
    order = k.pick(("",) * 4 + (", memory_order='relaxed'", ", memory_order='release'"))
    with k.inside(f"for {', '.join(v.name for v in variables)} in T.Parallel({', '.join(map(str, extents))}):"):
        k.emit(f"T.atomic_{word}({name}[({k.pick(variables).name} + {k.pick((0, 1))}) % {count}], {value}{order})")


def atomic_neighbours(k: Kernel) -> None:
    lanes = k.pick((2, 4))
    source = k.filled(lambda t: t.dtype in ("float32", "float16") and len(t.shape) == 2 and t.shape[1] % lanes == 0)
    name = k.tensor(source.shape, source.dtype, "O")
    with k.inside(f"for i, j in T.Parallel({source.shape[0]}, {source.shape[1] // lanes}):"):
        k.emit(f"T.atomic_addx{lanes}({name}[i, j * {lanes}], {source.name}[i, j * {lanes}])")


def atomic_one(k: Kernel) -> None:
    """Elements that are set and read in one step."""
    dtype = k.pick(("int32", "float32", "uint32", "int64"))
    source, target = k.tensor((16,), dtype), k.tensor((prod(k.grid), 16), dtype, "O")
    number = "bx" if len(k.grid) == 1 else f"bx * {k.grid[1]} + by"
    with k.inside("for i in T.Parallel(16):"):
        k.emit(f"T.atomic_store({target}[{number}, i], T.atomic_load({source}[i]))")


# ---- threads ---------------------------------------------------------------------------------------------------------

WARP_FORMS = (
    "T.shfl_xor({x}, {n})", "T.shfl_up({x}, {n})", "T.shfl_down({x}, {n})", "T.shfl_sync({x}, {n})",
    "T.warp_reduce_sum({x})", "T.warp_reduce_max({x})", "T.warp_reduce_min({x})",
)  # fmt: skip
WARP_BIT_FORMS = ("T.warp_reduce_bitand({x})", "T.warp_reduce_bitor({x})")
VOTES = ("T.any_sync({c})", "T.all_sync({c})", "T.ballot_sync({c})", "T.ballot({c})", "T.match_any_sync({x})",
         "T.match_all_sync({x})")  # fmt: skip


def lanes(k: Kernel) -> None:
    """What the lanes of a warp find out together."""
    rows, columns = k.pick(((1, 32), (2, 64), (4, 32), (8, 32), (4, 96)))
    source = k.tile((rows, columns), k.pick(("float32", "int32", "uint32")), "shared")
    load_tile(k, source, source.dtype)
    dtype = source.dtype
    x = f"{source.name}[i, j]"
    forms = WARP_FORMS + (WARP_BIT_FORMS if dtype != "float32" else ())
    form = k.pick(forms + VOTES) if k.chance(0.6) else k.pick(forms)
    value = form.replace("{x}", x).replace("{c}", f"{x} > 0").replace("{n}", str(k.pick((1, 2, 5, 16))))
    out = k.tensor((prod(k.grid) * rows, columns), "int64" if form in VOTES else dtype, "O")
    number = "bx" if len(k.grid) == 1 else f"(bx * {k.grid[1]} + by)"
    if k.loops:
        raise Cannot
    with k.inside(f"for i, j in T.Parallel({rows}, {columns}):"):
        k.emit(f"{out}[{number} * {rows} + i, j] = T.cast({value}, {'int64' if form in VOTES else dtype!r})")


def threads(k: Kernel) -> None:
    """What every thread does for itself."""
    if k.loops or k.is_conditional:
        raise Cannot
    dtype = k.pick(("float32", "int32", "float16"))
    source = k.tensor((prod(k.grid) * k.threads,), dtype)
    out = k.tensor((prod(k.grid) * k.threads,), dtype, "O")
    tx = k.new("tx")
    number = "bx" if len(k.grid) == 1 else f"(bx * {k.grid[1]} + by)"
    k.emit(f"{tx} = T.get_thread_binding()")
    value = f"{source}[{number} * {k.threads} + {tx}]"
    form = k.pick(("{v} + T.cast({tx}, '{t}')", "{v} * 2", "T.cast(T.get_lane_idx(), '{t}') - {v}",
                   "T.cast(T.get_warp_idx() * T.get_thread_extent(0), '{t}')"))  # fmt: skip
    made = form.replace("{v}", value).replace("{tx}", tx).replace("{t}", dtype)
    line = f"{out}[{number} * {k.threads} + {tx}] = {made}"
    if k.chance(0.4):
        with k.inside(f"if {tx} < {k.pick((1, 17, 32, k.threads))}:"):
            k.emit(line)
    else:
        k.emit(line)


def block_vote(k: Kernel) -> None:
    """What the whole block finds out."""
    if k.loops or k.is_conditional:
        raise Cannot
    word = k.pick(("count", "and", "or"))
    out = k.tensor((*reversed(k.grid),), "int32", "O")
    k.emit(f"votes = T.syncthreads_{word}(T.get_thread_binding() < {k.pick((0, 7, k.threads))})")
    k.emit(f"{out}[{', '.join(b.name for b in reversed(k.blocks))}] = votes")


COMMON: tuple[tuple[int, Drawer], ...] = (
    (7, load), (4, store), (4, move), (3, move_part), (2, fill), (1, fill_part), (1, transpose), (1, reshape),
    (10, nest), (1, vectorised), (4, reduce), (2, scan), (1, reducer), (1, atomic_tile), (1, atomic_elements),
    (1, atomic_neighbours), (1, atomic_one), (1, lanes), (1, threads), (1, block_vote),
)  # fmt: skip
__all__ = ["COMMON", "Drawer", "Scope", "load_tile", "store_tile"]
