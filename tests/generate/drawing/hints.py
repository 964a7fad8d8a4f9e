"""What changes nothing of what a kernel means: hints, layouts, and order that is there already."""

from __future__ import annotations

from drawing.kernel import NIBBLES, Cannot, Kernel

LINES = (
    "T.use_swizzle(2)", "T.use_swizzle(4, order='col')", "T.use_swizzle(2, enable=False)",
    "T.annotate_min_blocks_per_sm(1)", "T.no_set_max_nreg()", "T.disable_warp_group_reg_alloc()",
    "T.annotate_producer_reg_dealloc(24)", "T.annotate_consumer_reg_alloc(240)", "T.func_attr({'a': 1})",
    "T.annotate_compile_flags('-O3')",
)  # fmt: skip
"""At the head of a kernel."""

ANYWHERE = (
    "T.sync_threads()", "T.fence_proxy_async()", "T.sync_warp()", "T.tma_store_arrive()", "T.tma_store_wait()",
    "T.ptx_wait_group(0)", "T.assume(bx >= 0)", "T.device_assert(bx < 100, 'too many')", "assert bx >= 0",
    "T.evaluate(0)", "T.pdl_sync()", "T.pdl_trigger()", "pass", "T.print(bx, 'block')",
)  # fmt: skip


def head(k: Kernel) -> None:
    """Hints for the whole kernel."""
    k.notes.append(k.pick(LINES))


def anywhere(k: Kernel) -> None:
    """Order that statements have anyway."""
    if k.is_conditional:
        raise Cannot
    k.emit(k.pick(ANYWHERE))


def layout(k: Kernel) -> None:
    """Where the elements of a tile lie."""
    tile = k.pick([t for t in k.tiles if not t.name.startswith("_")] or [None])
    if tile is None or tile.name in k.told or k.depth > 2:
        raise Cannot
    if tile.scope == "fragment":
        if len(tile.shape) != 2 or tile.shape[0] * tile.shape[1] % k.threads:
            raise Cannot
        each, columns = tile.shape[0] * tile.shape[1] // k.threads, tile.shape[1]
        number = f"(i * {columns} + j)"
        map_ = f"T.Fragment({tile.shape}, forward_fn=lambda i, j: ({number} // {each}, {number} % {each}))"
    elif len(tile.shape) != 2 or tile.scope != "shared":
        raise Cannot
    elif tile.dtype in NIBBLES:
        map_ = f"tilelang.layout.make_swizzled_layout({tile.name})"
    else:
        columns = tile.shape[1]
        map_ = k.pick((
            f"tilelang.layout.make_swizzled_layout({tile.name})",
            f"T.Layout({tile.shape}, lambda i, j: i * {columns + k.pick((0, 1, 8))} + j)",
            f"T.Layout({tile.shape}, lambda i, j: (j, i))",
            f"T.Layout({tile.shape}, lambda i, j: i * {columns} + (j ^ (i % 2)))" if columns % 2 == 0 else "",
        ))  # fmt: skip
        if not map_:
            raise Cannot
    k.told.add(tile.name)
    k.notes.append(f"T.annotate_layout({{{tile.name}: {map_}}})")


def stages(k: Kernel) -> None:
    """In how many versions or parts the compiler is to have a tile."""
    tile = k.pick([t for t in k.tiles if t.scope == "shared" and not t.name.startswith("_")] or [None])
    if tile is None or tile.name in k.told or k.depth > 2:
        raise Cannot
    k.told.add(tile.name)
    parts = ", ".join("1" for _ in tile.shape)
    told = k.pick(
        (
            f"T.annotate_pipeline({{{tile.name}: {k.pick((1, 2, 3))}}})",
            f"T.annotate_subtile({{{tile.name}: ({parts},)}})",
        )
    )
    k.notes.append(told)


def outside(k: Kernel) -> None:
    """What lies outside a tensor."""
    floats = [p.split(":")[0] for p in k.parameters if p.startswith("A") and "float32" in p]
    if not floats or k.depth > 2 or k.told & set(floats):
        raise Cannot
    name = k.pick(floats)
    k.told.add(name)
    k.notes.append(f"T.{k.pick(('annotate_safe_value', 'annotate_padding'))}({{{name}: {k.pick((1, -2.5, 0))}}})")


HINTS = ((2, anywhere), (2, layout), (1, stages), (1, outside))
