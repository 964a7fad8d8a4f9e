"""Tile IR as text: one line per statement, regions as start:+extent. Deterministic; `ir.read` reads it back.

What a class has by default is not written. A `%` that touches what follows it is part of a name, which no source has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, assert_never

from tilec.ir import tile
from tilec.ir.types import BOOL, FLOAT32, INT32

SYMBOLS = {
    "or": ("or", 1), "and": ("and", 2),
    "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4), "eq": ("==", 4), "ne": ("!=", 4),
    "bitor": ("|", 5), "xor": ("^", 6), "bitand": ("&", 7), "shl": ("<<", 8), "shr": (">>", 8),
    "add": ("+", 9), "sub": ("-", 9), "mul": ("*", 10), "div": ("/", 10), "floordiv": ("//", 10),
    "floormod": ("%", 10),
}  # fmt: skip
"""Symbol and precedence, as in Python; min and max are written as calls."""

_PLAIN = {INT32: int, FLOAT32: float, BOOL: bool}
"""Types whose constants stand without a name, and how Python holds one."""

_NOT = 3
_NEGATE = 11


Note = Callable[[tile.Stmt], str]
"""Returns the comment beside a statement; an empty text for none."""


def print_kernel(kernel: tile.Kernel, *, note: Note | None = None) -> str:
    """Return a kernel as tile IR text that `ir.read` reads back, with the comments that `note` gives for statements."""
    return "\n".join(_write_kernel_lines(kernel, note)) + "\n"


def _write_kernel_lines(kernel: tile.Kernel, note: Note | None) -> Iterator[str]:
    """Yield the text lines of a kernel: header, declarations, layouts, options, then statements, with `note`'s
    comments.
    """
    params = ", ".join(p.name for p in kernel.params)
    grid = zip(kernel.block_vars, kernel.grid, strict=True)
    block = ", ".join(f"{var.name} < {show_extent(extent)}" for var, extent in grid)
    yield f"kernel {kernel.name}({params}), blocks {block}, {kernel.threads} threads"
    yield from (f"  {_format_declaration(declared)}" for declared in (*kernel.params, *kernel.buffers))
    for pinned in kernel.layouts:
        yield f"  layout {pinned.buffer.name}: {_format_annotated_layout(pinned.layout)}"
    for subtile in kernel.subtiles:
        yield f"  subtile {subtile.buffer.name}: {', '.join(map(str, subtile.parts))}"
    if kernel.cluster.blocks > 1:
        yield f"  cluster {', '.join(map(str, kernel.cluster.extents))}"
    if (raster := kernel.raster) is not None:
        direction = "rows" if raster.by_rows else "columns"
        yield f"  raster {f'panels({raster.panel}, {direction})' if raster.panel else 'none'}"
    if kernel.min_blocks is not None:
        yield f"  blocks-of-a-multiprocessor {kernel.min_blocks.count}"
    if kernel.outputs:
        yield f"  returns {', '.join(kernel.outputs)}"
    if kernel.asks:
        yield f"  asks {', '.join(kernel.asks)}"
    yield ""
    for stmt in kernel.body:
        yield from _write_statement_lines(stmt, "  ", note)


def _format_declaration(param: tile.Buffer | tile.Var) -> str:
    """Return a parameter's or tile's declaration as text: `scalar NAME: TYPE`, or scope, name, type, shape and
    strides."""
    if isinstance(param, tile.Var):
        return f"scalar {param.name}: {param.dtype}"
    return f"{param.scope} {show_declared(param)}"


def show_declared(buffer: tile.Buffer) -> str:
    """Return a buffer's name, type, shape, strides and rank as a table without its scope, as `A: float16[m, 64]`."""
    shape = f"{buffer.name}: {buffer.dtype}[{', '.join(map(show_extent, buffer.extents))}]"
    shape += "" if buffer.strides is None else f", strides ({', '.join(map(show_extent, buffer.strides))})"
    return f"{shape}, table {buffer.table_rank}" if buffer.table_rank else shape


def show_extent(extent: tile.Extent) -> str:
    """Return a size as text: a number, or an expression."""
    return str(extent) if isinstance(extent, int) else show_expr(extent)


def _write_statement_lines(stmt: tile.Stmt, indent: str, note: Note | None) -> Iterator[str]:
    """Yield the text lines of a statement and of those nested in it, indented, with the comments that `note` gives."""
    first, nested = _split_statement(stmt)
    comment = note(stmt) if note is not None else ""
    yield f"{indent}{first}  # {comment}" if comment else f"{indent}{first}"
    for head, body in nested:
        if head:
            yield f"{indent}{head}"
        for inner in body:
            yield from _write_statement_lines(inner, f"{indent}  ", note)


def _split_statement(stmt: tile.Stmt) -> tuple[str, tuple[tuple[str, tuple[tile.Stmt, ...]], ...]]:
    """Return a statement's own line, and the statement lists nested in it, each with its heading (`else:` or none)."""
    match stmt:
        case tile.TileOp():
            return show_tile_op(stmt), ()
        case tile.Store():
            return show_store(stmt), ()
        case tile.Print(text=text, values=values):
            return (
                f"{'stop' if stmt.stops else 'print'} {', '.join([_format_attribute(text), *map(show_expr, values)])}",
                (),
            )
        case tile.Bind(var=var, value=value):
            return f"{var.name}: {var.dtype} = {show_expr(value)}", ()
        case tile.Parallel(body=body):
            return _format_parallel_heading(stmt), (("", body),)
        case tile.For(body=body):
            return _format_for_heading(stmt), (("", body),)
        case tile.If(condition=condition, then=then, orelse=orelse):
            nested = ("", then or ()), ("else:", orelse)
            return f"if {show_expr(condition)}:", nested if orelse else nested[:1]
        case tile.While(condition=condition, body=body):
            return f"while {show_expr(condition)}:", (("", body),)
        case tile.Break():
            return "break", ()
        case _:
            assert_never(stmt)


def _format_parallel_heading(nest: tile.Parallel) -> str:
    """Return the first line of a parallel nest: variables, extents and those options that are set."""
    parts = [str(extent) for extent in nest.extents]
    if nest.width is not None:
        parts.append(f"width={nest.width}")
    if nest.layout is not None:
        parts.append(f"layout={_format_loop_layout(nest.layout)}")
    if nest.asynchronous:
        parts.append("asynchronous=True")
    if nest.versioned:
        named = zip(nest.versioned, nest.versions, strict=True)
        parts.append(f"versions={{{', '.join(f'{name}: {show_expr(index)}' for name, index in named)}}}")
    return f"for {_join_names(nest.vars)} in parallel({', '.join(parts)}):"


def _format_annotated_layout(layout: tile.LoopLayout | tile.Placement | int) -> str:
    """Return the layout that an author gives a tile, as text: `swizzle(…)`, `placement(…)` or `fragment(…)`."""
    if isinstance(layout, int):
        return f"swizzle({layout})"
    if isinstance(layout, tile.Placement):
        place = f"lambda {_join_names(layout.vars)}: {show_expr(layout.place)}"
        return f"placement({list(layout.shape)}, {layout.size}, {place})"
    return _format_loop_layout(layout)


def _format_loop_layout(layout: tile.LoopLayout) -> str:
    """Return the layout of a nest as text: `fragment([EXTENT, …], lambda …: (THREAD, INDEX))`, with copies if
    several."""
    pair = f"({show_expr(layout.thread)}, {show_expr(layout.index) if layout.index is not None else None})"
    copies = f", {layout.copies}" if layout.copies > 1 else ""
    return f"fragment({list(layout.shape)}, lambda {_join_names(layout.vars)}: {pair}{copies})"


def _join_names(variables: tuple[tile.Var, ...]) -> str:
    """Return the names of variables, joined by commas."""
    return ", ".join(v.name for v in variables)


def _format_for_heading(loop: tile.For) -> str:
    """Return the first line of a loop: variable, kind, bounds, a step other than 1, and those options that are set."""
    hints = loop.scheduling_hints
    listed = None if hints is None else {"asynchronous": hints.asynchronous, "groups": hints.groups, "sync": hints.sync}
    options = {
        "factor": loop.factor,
        "distinct_by": loop.distinct_by,
        "dynamically_scheduled": loop.dynamically_scheduled or None,
        "num_stages": loop.num_stages,
        "stage": loop.stage,
        "order": loop.order,
        "scheduling_hints": listed and {name: _as_lists(hint) for name, hint in listed.items() if hint is not None},
    }
    parts = [show_expr(loop.start), show_expr(loop.stop), *([str(loop.step)] if loop.step != 1 else [])]
    parts += [f"{name}={_as_lists(value)!r}" for name, value in options.items() if value is not None]
    return f"for {loop.var.name} in {loop.kind}({', '.join(parts)}):"


def _as_lists(value: Any) -> Any:
    """Return a tuple as a list, and tuples inside it too; any other value as it is."""
    return [_as_lists(member) for member in value] if isinstance(value, tuple) else value


def show_store(store: tile.Store) -> str:
    """Return a store's line: `C[i] = x`, or `old: float32 = atomic_add C[i], x, acquire`; an atomic load without a
    value."""
    element = f"{store.buffer.name}[{', '.join(map(show_expr, store.indices))}]"
    if store.atomic is None:
        return f"{element} = {show_expr(store.value)}"
    named = "" if store.previous is None else f"{store.previous.name}: {store.previous.dtype} = "
    value = "" if store.atomic == "load" else f", {show_expr(store.value)}"
    order = "" if store.order == "relaxed" else f", {store.order}"
    return f"{named}atomic_{store.atomic} {element}{value}{order}"


def show_tile_op(op: tile.TileOp) -> str:
    """Return an operation's line: name, regions, and the attributes that differ from their defaults."""
    parts = [show_region(r) for r in op.regions]
    parts += [f"{key}={_format_attribute(value)}" for key, value in op.attributes]
    return f"{op.name} {', '.join(parts)}".rstrip()


def _format_attribute(value: tile.Attr) -> str:
    """Return an attribute as text: a plain value as Python writes it, a tuple as a list, else an expression. A constant
    of an expression always names its type, which distinguishes it from a plain value."""
    match value:
        case tile.Const():
            return _format_typed_constant(value)
        case str():
            return repr(value).replace("#", r"\x23").replace("%", r"\x25")  # no comment, no name
        case float() if not isfinite(value):
            return f"float('{value}')"
        case None | int() | float():
            return repr(value)
        case tuple():
            return f"[{', '.join(map(_format_attribute, value))}]"
        case _:
            return show_expr(value)


def _format_typed_constant(const: tile.Const) -> str:
    """Return a constant with its type, as `float16(1.0)`; an infinity or a NaN in quotes."""
    is_number = not isinstance(const.value, float) or isfinite(const.value)
    return f"{const.dtype}({const.value})" if is_number else f"{const.dtype}('{const.value}')"


def show_region(region: tile.Region) -> str:
    """Return a region as `A[by * 128:+128, :, 3]`: a whole dimension is `:`, an extent of 1 only its index."""
    dims = zip(region.start, region.extent, region.buffer.extents, strict=True)
    return f"{region.buffer.name}[{', '.join(_format_dimension(*d) for d in dims)}]"


def _format_dimension(start: tile.Expr, extent: int, size: tile.Extent) -> str:
    """Return one dimension of a region: `:` if whole, an index if its extent is 1, else `START:+EXTENT`."""
    if extent == size and start == tile.Const(0, INT32):
        return ":"
    return show_expr(start) if extent == 1 else f"{show_expr(start)}:+{extent}"


def show_expr(expr: tile.Expr) -> str:
    """Return an expression as Python would write it; constants other than int32, float32 and bool name their type.
    Calls name theirs, as `reinterpret[int32](x)`, where it differs from their first argument's."""
    return _format_expr(expr)[0]


def _format_expr(expr: tile.Expr) -> tuple[str, int]:
    """Return an expression's text, and the precedence of its outermost operator; 12 for text that needs no
    parentheses."""
    atom = 12
    match expr:
        case tile.Const(value=value, dtype=dtype):
            is_plain = type(value) is _PLAIN.get(dtype) and isfinite(value)
            return (str(value) if is_plain else _format_typed_constant(expr)), atom
        case tile.Var(name=name):
            return name, atom
        case tile.Unary(op="neg", a=tile.Const() as a):
            return f"neg({show_expr(a)})", atom  # -1 is a constant
        case tile.Unary(op=op, a=a):
            binds = _NOT if op == "not" else _NEGATE
            return f"{'not ' if op == 'not' else '-'}{_format_operand(a, binds)}", binds
        case tile.Binary(op="min" | "max" as op, a=a, b=b):
            return f"{op}({show_expr(a)}, {show_expr(b)})", atom
        case tile.Binary(op=op, a=a, b=b):
            symbol, binds = SYMBOLS[op]
            # Comparisons chain in Python, so neither side may be one.
            left = binds + 1 if symbol in ("<", "<=", ">", ">=", "==", "!=") else binds
            return f"{_format_operand(a, left)} {symbol} {_format_operand(b, binds + 1)}", binds
        case tile.Call(fn=fn, args=args, dtype=dtype):
            named = "" if args and args[0].dtype == dtype else f"[{dtype}]"
            return f"{fn}{named}({', '.join(map(show_expr, args))})", atom
        case tile.Ptx(text=text, args=args, dtype=dtype):
            return f"ptx[{dtype}]({', '.join([repr(text), *map(show_expr, args)])})", atom
        case tile.Cast(a=tile.Const(dtype=own) as a, dtype=dtype) if own in _PLAIN:
            return f"cast({show_expr(a)}, {dtype})", atom  # float16(1.0) is a constant
        case tile.Cast(a=a, dtype=dtype):
            return f"{dtype}({show_expr(a)})", atom
        case tile.Select(condition=condition, then=then, orelse=orelse):
            return f"select({show_expr(condition)}, {show_expr(then)}, {show_expr(orelse)})", atom
        case tile.Load(buffer=buffer, indices=indices):
            return f"{buffer.name}[{', '.join(map(show_expr, indices))}]", atom
        case _:
            assert_never(expr)


def _format_operand(expr: tile.Expr, at_least: int) -> str:
    """Return an operand's text, in parentheses if its precedence is below `at_least`."""
    text, binds = _format_expr(expr)
    return text if binds >= at_least else f"({text})"
