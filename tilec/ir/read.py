"""Parser of tile IR's text, the inverse of `ir.text`: a kernel can be stored, edited and compiled from it.

Expressions are Python's, parsed with `ast`; every type follows from the declarations and from the constants, which name
theirs unless they are int32, float32 or bool. Spans refer to the text that is parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, NoReturn, TypeVar, get_args

from tilec.ir import operations, tile
from tilec.ir.expr import constant
from tilec.ir.text import SYMBOLS
from tilec.ir.types import BOOL, BY_NAME, FLOAT32, INT32, DType
from tilec.support import readers, schema
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass
from tilec.support.source import Span

_HEADER = re.compile(r"kernel (\w+)\((.*)\), blocks (.*), (\d+) threads")
_DECLARATION = re.compile(
    rf"({'|'.join((*get_args(tile.Scope), 'scalar'))}) ([\w.]+): (\w+)(?:\[(.+?)\])?(?:, strides \((.+)\))?"
)
_CLUSTER = re.compile(r"cluster (\d+), (\d+), (\d+)")
_RASTER = re.compile(r"raster (?:none|panels\((\d+), (rows|columns)\))")
_PINNED = re.compile(r"layout ([\w.]+): (.*)")
_SUBTILE = re.compile(r"subtile ([\w.]+): (\d+(?:, \d+)*)")
_LOOP = re.compile(r"for (.*) in (serial|pipelined|unroll|parallel)\((.*)\):")
_ATOMIC = re.compile(rf"(?:([\w.]+): (\w+) = )?atomic_({'|'.join(get_args(tile.Atomic))}) ([\w.]+\[.*)")
_BIND = re.compile(r"(%?[\w.]+): (\w+) = (.*)")
_STORE = re.compile(r"([\w.]+\[.*?\]) = (.*)")
_OPERATION = re.compile(r"([a-z_]\w*)(?: (\S.*))?")
_INTERNAL = re.compile(r"%(?=\w)")
_LETTER = "\N{RUNIC ARLAUG SYMBOL}"
"""A letter to Python that no kernel uses: it stands for the % of a name while Python parses an expression."""
_SCOPES: dict[str, tile.Scope] = {scope: scope for scope in get_args(tile.Scope)}
_KINDS: dict[str, tile.LoopKind] = {kind: kind for kind in get_args(tile.LoopKind)}
_ATOMICS: dict[str, tile.Atomic] = {atomic: atomic for atomic in get_args(tile.Atomic)}
_ORDERS: dict[str, tile.Order] = {order: order for order in get_args(tile.Order)}
_BINARY: dict[str, tile.BinaryOp] = {
    symbol: op for op in get_args(tile.BinaryOp) if op in SYMBOLS for symbol in SYMBOLS[op][:1]
}
_SYMBOL_OF: dict[type[ast.AST], str] = {
    ast.Or: "or", ast.And: "and", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&", ast.LShift: "<<", ast.RShift: ">>", ast.Add: "+", ast.Sub: "-",
    ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    depth: int
    text: str

    @property
    def span(self) -> Span:
        first = 2 * self.depth + 1
        return Span(self.number, first, self.number, first + len(self.text))


class _Arguments(NamedTuple):
    positional: list[ast.expr]
    named: dict[str, ast.expr]


def read_kernel(text: str) -> tile.Kernel:
    """Return the kernel in a text written by `print_kernel` or by hand; raises `CompileError` for anything else."""
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = re.split(r"(?:^|  )#", line)[0].rstrip()
        if stripped:  # neither empty nor only a comment
            indent = len(stripped) - len(stripped.lstrip())
            lines.append(_Line(number, indent // 2, stripped.lstrip()))
            if lines[-1].depth > readers.DEEPEST:
                fail("bad-tile-ir", f"this is no tile IR: blocks lie more than {readers.DEEPEST} deep", lines[-1].span)
    return _Reader(lines).kernel()


class _Reader:
    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0
        self.vars: dict[str, tile.Var] = {}
        self.buffers: dict[str, tile.Buffer] = {}

    # ---- lines -------------------------------------------------------------------------------------------------------

    def wrong(self, what: str, line: _Line | None = None) -> NoReturn:
        if line is None and not self.lines:
            fail("bad-tile-ir", "this is no tile IR: the file is empty")
        line = line or self.lines[min(self.at, len(self.lines) - 1)]
        fail("bad-tile-ir", f"this is no tile IR: {what}", line.span)

    def peek(self, depth: int) -> _Line | None:
        """Return the next line, if it belongs to a block of this depth."""
        if self.at == len(self.lines) or self.lines[self.at].depth < depth:
            return None
        line = self.lines[self.at]
        if line.depth > depth:
            self.wrong("the line is indented further than its block", line)
        return line

    def kernel(self) -> tile.Kernel:
        header = self.peek(0)
        match = _HEADER.fullmatch(header.text) if header else None
        if header is None or match is None:
            self.wrong("expected 'kernel NAME(…), blocks …, N threads'")
        self.at += 1
        names = match[2].split(", ") if match[2] else []
        declarations: list[tuple[re.Match[str], _Line]] = []
        while (line := self.peek(1)) and (found := _DECLARATION.fullmatch(line.text)):
            declarations.append((found, line))
            self.at += 1
        # Extents may refer to scalars declared anywhere.
        scalars = (
            tile.Var(found[2], self.dtype(found[3], line)) for found, line in declarations if found[1] == "scalar"
        )
        self.vars = {v.name: v for v in scalars}
        declared = [self.declaration(found, line) for found, line in declarations]
        grid, block_vars = self.grid(match[3], header)
        params, buffers = declared[: len(names)], declared[len(names) :]
        if [p.name for p in params] != names:
            self.wrong(f"the parameters {', '.join(names)} are not declared first, in this order", header)
        tiles = tuple(b for b in buffers if isinstance(b, tile.Buffer))
        self.buffers = {b.name: b for b in declared if isinstance(b, tile.Buffer)}
        self.vars = {v.name: v for v in (*params, *block_vars, tile.THREAD, tile.WARPGROUP) if isinstance(v, tile.Var)}
        layouts, subtiles = tuple(self.pinned()), tuple(self.subtiles())
        cluster, raster = self.cluster(), self.raster()
        outputs = self.listed("returns", tuple(p.name for p in params if isinstance(p, tile.Buffer)))
        asks = self.listed("asks", get_args(tile.Ask))
        body = self.body(1)
        if self.at < len(self.lines):
            self.wrong("nothing may follow the kernel")
        threads = int(match[4])
        return tile.Kernel(
            *(match[1], tuple(params), grid, block_vars, threads, tiles, body, header.span, layouts, outputs, asks),
            cluster,
            raster,
            subtiles,
        )

    def cluster(self) -> tile.Cluster:
        """Return the cluster's extents, if a line gives them."""
        line = self.peek(1)
        found = None if line is None else _CLUSTER.fullmatch(line.text)
        if line is None or found is None:
            return tile.ALONE
        self.at += 1
        return tile.Cluster((int(found[1]), int(found[2]), int(found[3])), line.span)

    def subtiles(self) -> Iterator[tile.Subtile]:
        """Yield the numbers of parts that tiles are split into."""
        while (line := self.peek(1)) and (found := _SUBTILE.fullmatch(line.text)):
            yield tile.Subtile(self.buffer(ast.Name(found[1]), line), tuple(map(int, found[2].split(", "))), line.span)
            self.at += 1

    def raster(self) -> tile.Raster | None:
        """Return the order of the blocks, if a line gives it."""
        line = self.peek(1)
        found = None if line is None else _RASTER.fullmatch(line.text)
        if line is None or found is None:
            return None
        self.at += 1
        return tile.Raster(int(found[1] or 0), found[2] != "columns", line.span)

    def listed(self, word: str, known: tuple[T, ...]) -> tuple[T, ...]:
        """Return the names after a keyword, if a line begins with it."""
        line = self.peek(1)
        if line is None or not line.text.startswith(f"{word} "):
            return ()
        names = line.text.removeprefix(f"{word} ").split(", ")
        if strange := [name for name in names if name not in known]:
            self.wrong(f"there is no '{strange[0]}' to be named here", line)
        self.at += 1
        return tuple(k for name in names for k in known if k == name)

    def pinned(self) -> Iterator[tile.Pinned]:
        """Yield the layouts that tiles are given."""
        while (line := self.peek(1)) and (found := _PINNED.fullmatch(line.text)):
            buffer, node = self.buffer(ast.Name(found[1]), line), self.python(found[2], line)
            match node:
                case ast.Call(func=ast.Name(id="swizzle"), args=[width]):
                    yield tile.Pinned(buffer, self.literal(width, int, line), line.span)
                case ast.Call(
                    func=ast.Name(id="placement"),
                    args=[shape, size, ast.Lambda(args=ast.arguments(args=names), body=place)],
                ):
                    variables, (read,) = self.of_indices(names, (place,), line)
                    placement = tile.Placement(
                        self.integers(shape, line), variables, read, self.literal(size, int, line)
                    )
                    yield tile.Pinned(buffer, placement, line.span)
                case _:
                    yield tile.Pinned(buffer, self.layout(node, line), line.span)
            self.at += 1

    def grid(self, text: str, header: _Line) -> tuple[tuple[tile.Extent, ...], tuple[tile.Var, ...]]:
        """Return the extents, and the variables bounded by them."""
        extents: list[tile.Extent] = []
        variables: list[tile.Var] = []
        for part in self.arguments(text, header).positional:
            match part:
                case ast.Compare(left=ast.Name() | ast.Attribute() as name, ops=[ast.Lt()], comparators=[extent]):
                    variables.append(tile.Var(_name(ast.unparse(name))))
                    extents.append(self.extent(extent, header))
                case _:
                    self.wrong(f"expected 'NAME < EXTENT', found '{ast.unparse(part)}'", header)
        return tuple(extents), tuple(variables)

    def extent(self, node: ast.expr, line: _Line) -> tile.Extent:
        read = self.node(node, line)
        return int(read.value) if isinstance(read, tile.Const) and read.dtype == INT32 else read

    def declaration(self, match: re.Match[str], line: _Line) -> tile.Buffer | tile.Var:
        scope, name, dtype = match[1], match[2], self.dtype(match[3], line)
        if scope == "scalar":
            return tile.Var(name, dtype)
        if not match[4]:
            self.wrong(f"{name} has no shape", line)
        shape = tuple(self.extent(extent, line) for extent in self.arguments(match[4], line).positional)
        steps = self.arguments(match[5], line).positional if match[5] else None
        strides = None if steps is None else tuple(self.extent(step, line) for step in steps)
        return tile.Buffer(name, shape, dtype, _SCOPES[scope], line.span, strides=strides)

    def dtype(self, name: str, line: _Line | None = None) -> DType:
        if name not in BY_NAME:
            self.wrong(f"there is no type '{name}'", line)
        return BY_NAME[name]

    # ---- statements --------------------------------------------------------------------------------------------------

    def body(self, depth: int) -> tuple[tile.Stmt, ...]:
        before = dict(self.vars)
        stmts: list[tile.Stmt] = []
        while (line := self.peek(depth)) and line.text != "else:":
            stmts.append(self.stmt(line))
        self.vars = before
        return tuple(stmts)

    def stmt(self, line: _Line) -> tile.Stmt:
        if line.text.startswith("if ") and line.text.endswith(":"):
            return self.branch(line)
        if line.text.startswith("while ") and line.text.endswith(":"):
            condition = self.expr(line.text[len("while ") : -1], line)
            self.at += 1
            return tile.While(condition, self.body(line.depth + 1), line.span)
        if match := _LOOP.fullmatch(line.text):
            return self.loop(match[1], match[2], match[3], line)
        self.at += 1
        if line.text == "break":
            return tile.Break(line.span)
        if match := _ATOMIC.fullmatch(line.text):
            previous = tile.Var(match[1], self.dtype(match[2], line)) if match[1] else None
            return self.atomic(previous, _ATOMICS[match[3]], match[4], line)
        if match := _BIND.fullmatch(line.text):
            value = self.expr(match[3], line)
            var = tile.Var(match[1], self.dtype(match[2], line))
            self.vars[var.name] = var
            return tile.Bind(var, value, line.span)
        if line.text.startswith("print "):
            text, *values = self.arguments(line.text.removeprefix("print "), line).positional
            return tile.Print(self.literal(text, str, line), tuple(self.node(v, line) for v in values), line.span)
        if match := _OPERATION.fullmatch(line.text):
            rest = match[2] or ""
            if rest.startswith("= "):
                self.wrong("a store has indices, a bind has a type", line)
            return self.operation(match[1], rest, line)
        if match := _STORE.fullmatch(line.text):
            # The first `] = ` ends the target: nothing inside indices has an equals sign with blanks around it.
            target = self.expr(match[1], line)
            if isinstance(target, tile.Load):
                return tile.Store(target.buffer, target.indices, self.expr(match[2], line), line.span)
        raise self.wrong("expected a statement", line)

    def branch(self, line: _Line) -> tile.If:
        condition = self.expr(line.text[len("if ") : -1], line)
        self.at += 1
        then = self.body(line.depth + 1)
        orelse: tuple[tile.Stmt, ...] = ()
        if (after := self.peek(line.depth)) and after.text == "else:":
            self.at += 1
            orelse = self.body(line.depth + 1)
        return tile.If(condition, then, orelse, line.span)

    def loop(self, names: str, kind: str, text: str, line: _Line) -> tile.For | tile.Parallel:
        arguments = self.arguments(text, line)
        self.at += 1
        return (
            self.parallel(names, arguments, line) if kind == "parallel" else self.serial(names, kind, arguments, line)
        )

    def parallel(self, names: str, arguments: _Arguments, line: _Line) -> tile.Parallel:
        extents = tuple(self.literal(argument, int, line) for argument in arguments.positional)
        given = arguments.named
        width, layout, asynchronous, versions = (
            given.pop(name, None) for name in ("width", "layout", "asynchronous", "versions")
        )
        self.nothing_else(given, "parallel", line)
        named = {} if versions is None else self.versions(versions, line)
        variables = tuple(tile.Var(name) for name in names.split(", "))
        self.vars |= {v.name: v for v in variables}
        return tile.Parallel(
            variables, extents, self.body(line.depth + 1), line.span,
            None if width is None else self.literal(width, int, line),
            None if layout is None else self.layout(layout, line),
            asynchronous is not None and self.literal(asynchronous, bool, line),
            tuple(named), tuple(named.values()),
        )  # fmt: skip

    def versions(self, node: ast.expr, line: _Line) -> dict[str, tile.Expr]:
        if isinstance(node, ast.Dict):
            named = zip(node.keys, node.values, strict=True)
            found = {_name(tile_.id): self.node(index, line) for tile_, index in named if isinstance(tile_, ast.Name)}
            if len(found) == len(node.keys):
                return found
        raise self.wrong("versions are written {TILE: INDEX, …}", line)

    def layout(self, node: ast.expr, line: _Line) -> tile.LoopLayout:
        match node:
            case ast.Call(
                func=ast.Name(id="fragment"),
                args=[shape, ast.Lambda(args=ast.arguments(args=names), body=ast.Tuple(elts=[thread, index])), *more],
            ) if len(more) < 2:
                given = (thread,) if isinstance(index, ast.Constant) and index.value is None else (thread, index)
                variables, read = self.of_indices(names, given, line)
                of_index = read[1] if len(read) > 1 else None
                copies = self.literal(more[0], int, line) if more else 1
                return tile.LoopLayout(self.integers(shape, line), variables, read[0], of_index, line.span, copies)
        raise self.wrong("a layout is written fragment([EXTENT, …], lambda NAME, …: (THREAD, INDEX), COPIES)", line)

    def of_indices(
        self, names: list[ast.arg], values: tuple[ast.expr, ...], line: _Line
    ) -> tuple[tuple[tile.Var, ...], tuple[tile.Expr, ...]]:
        """Return the variables and values of a lambda of indices."""
        variables = tuple(tile.Var(_name(name.arg)) for name in names)
        before = dict(self.vars)
        self.vars |= {v.name: v for v in variables}
        read = tuple(self.node(value, line) for value in values)
        self.vars = before
        return variables, read

    def serial(self, names: str, kind: str, arguments: _Arguments, line: _Line) -> tile.For:
        if not 2 <= len(arguments.positional) <= 3:
            self.wrong(f"{kind} takes a start, a stop and perhaps a step", line)
        start, stop = (self.node(argument, line) for argument in arguments.positional[:2])
        step = self.literal(arguments.positional[2], int, line) if len(arguments.positional) == 3 else 1
        given = arguments.named
        numbers = {name: self.literal(given.pop(name), int, line) for name in ("num_stages", "factor") if name in given}
        lists = {name: self.integers(given.pop(name), line) for name in ("stage", "order") if name in given}
        scheduling_hints = (
            self.scheduling_hints(given.pop("scheduling_hints"), line) if "scheduling_hints" in given else None
        )
        distinct_by = (
            tuple(map(str, self.literal(given.pop("distinct_by"), list, line))) if "distinct_by" in given else None
        )
        dynamically_scheduled = "dynamically_scheduled" in given and self.literal(
            given.pop("dynamically_scheduled"), bool, line
        )
        self.nothing_else(given, kind, line)
        var = tile.Var(names, start.dtype)
        self.vars[var.name] = var
        body = self.body(line.depth + 1)
        return tile.For(
            _KINDS[kind], var, start, stop, step, body, numbers.get("num_stages"), lists.get("stage"),
            lists.get("order"), line.span, scheduling_hints, numbers.get("factor"), distinct_by, dynamically_scheduled,
        )  # fmt: skip

    def scheduling_hints(self, node: ast.expr, line: _Line) -> tile.SchedulingHints:
        given = self.literal(node, dict, line)

        def members(name: str, kind: type[T]) -> tuple[T, ...] | None:
            value = given.pop(name, None)
            if value is None:
                return None
            if not isinstance(value, list) or any(type(member) is not kind for member in value):
                self.wrong(f"{name} is a list of {kind.__name__}", line)
            return tuple(value)

        asynchronous, groups, sync = members("asynchronous", bool), members("groups", int), members("sync", list)
        self.nothing_else(given, "scheduling_hints", line)
        waits = None if sync is None else tuple(tuple(waited) for waited in sync)
        return tile.SchedulingHints(asynchronous, groups, waits, line.span)

    def nothing_else(self, given: Collection[str], what: str, line: _Line) -> None:
        if given:
            self.wrong(f"{what} has no '{next(iter(given))}'", line)

    def atomic(self, previous: tile.Var | None, atomic: tile.Atomic, text: str, line: _Line) -> tile.Store:
        """Return an atomic store from its element, its value unless it is a load, and its order unless it is
        relaxed."""
        arguments = self.arguments(text, line)
        self.nothing_else(arguments.named, f"atomic_{atomic}", line)
        element, *rest = (self.node(a, line) for a in arguments.positional[: 1 if atomic == "load" else 2])
        orders = [ast.unparse(node) for node in arguments.positional[1 + len(rest) :]] or ["relaxed"]
        if not isinstance(element, tile.Load) or len(rest) != (atomic != "load") or len(orders) > 1:
            self.wrong(f"atomic_{atomic} takes an element{', a value' * (atomic != 'load')} and perhaps an order", line)
        if orders[0] not in _ORDERS:
            self.wrong(f"there is no order '{orders[0]}'", line)
        (value,) = rest or [constant(0, element.dtype)]
        if previous is not None:
            self.vars[previous.name] = previous
        return tile.Store(element.buffer, element.indices, value, line.span, atomic, _ORDERS[orders[0]], previous)

    def operation(self, name: str, rest: str, line: _Line) -> tile.TileOp:
        arguments = self.arguments(rest, line)
        regions = tuple(self.region(argument, line) for argument in arguments.positional)
        attributes = {key: self.attr(value, line) for key, value in arguments.named.items()}
        try:
            return operations.make(name, regions, attributes, line.span)
        except schema.SchemaError as error:
            self.wrong(str(error), line)

    def region(self, node: ast.expr, line: _Line) -> tile.Region:
        if not isinstance(node, ast.Subscript):
            self.wrong(f"'{ast.unparse(node)}' is no region of a buffer", line)
        buffer = self.buffer(node.value, line)
        dims = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(dims) != len(buffer.extents):
            self.wrong(f"{buffer.name} has {len(buffer.extents)} dimensions, here are {len(dims)}", line)
        start: list[tile.Expr] = []
        extent: list[int] = []
        for dim, size in zip(dims, buffer.extents, strict=True):
            match dim:
                case ast.Slice(lower=None, upper=None) if isinstance(size, int):
                    start.append(tile.integer(0))
                    extent.append(size)
                case ast.Slice(lower=ast.expr() as lower, upper=ast.UnaryOp(op=ast.UAdd(), operand=count)):
                    start.append(self.node(lower, line))
                    extent.append(self.literal(count, int, line))
                case ast.Slice():
                    self.wrong("a region is written START:+EXTENT", line)
                case _:
                    start.append(self.node(dim, line))
                    extent.append(1)
        return tile.Region(buffer, tuple(start), tuple(extent), line.span)

    def attr(self, node: ast.expr, line: _Line) -> tile.Attr:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)]):
                return self.number(text, line)
            case ast.List(elts=members):
                return tuple(self.plain(member, line) for member in members)
        return self.node(node, line)

    def plain(self, node: ast.expr, line: _Line) -> int | str:
        """Return a member of a list."""
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | str):
            self.wrong(f"'{ast.unparse(node)}' is neither a number nor a text", line)
        return value

    # ---- expressions -------------------------------------------------------------------------------------------------

    def python(self, text: str, line: _Line) -> ast.expr:
        try:
            return readers.python_expression(_INTERNAL.sub(_LETTER, text))
        except ValueError as error:
            self.wrong(f"'{text}' is no expression: {error}", line)

    def arguments(self, text: str, line: _Line) -> _Arguments:
        """Return the arguments of a call from the text between its parentheses."""
        match self.python(f"f({text})", line):
            case ast.Call(func=ast.Name(id="f"), args=positional, keywords=keywords):
                named = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
                if len(named) == len(keywords):
                    return _Arguments(positional, named)
        raise self.wrong(f"'{text}' is no list of arguments", line)

    def expr(self, text: str, line: _Line) -> tile.Expr:
        return self.node(self.python(text, line), line)

    def literal(self, node: ast.expr, kind: type[T], line: _Line) -> T:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            value = None
        if type(value) is not kind:
            self.wrong(f"'{ast.unparse(node)}' is no {kind.__name__}", line)
        return value

    def number(self, text: str, line: _Line) -> float:
        try:
            return float(text)
        except ValueError:
            self.wrong(f"'{text}' is no number", line)

    def integers(self, node: ast.expr, line: _Line) -> tuple[int, ...]:
        members = node.elts if isinstance(node, ast.List) else self.wrong("expected a list of integers", line)
        return tuple(self.literal(member, int, line) for member in members)

    def buffer(self, node: ast.expr, line: _Line) -> tile.Buffer:
        name = _name(ast.unparse(node))
        if name not in self.buffers:
            self.wrong(f"no buffer is called '{name}'", line)
        return self.buffers[name]

    def node(self, node: ast.expr, line: _Line) -> tile.Expr:
        def read(inner: ast.expr) -> tile.Expr:
            return self.node(inner, line)

        match node:
            case ast.Constant(value=bool() as value):
                return tile.Const(value, BOOL)
            case ast.Constant(value=int() | float() as value):
                return tile.Const(value, FLOAT32 if isinstance(value, float) else INT32)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return tile.Const(-value, FLOAT32 if isinstance(value, float) else INT32)
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return _unary("neg", read(a))
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return _unary("not", read(a))
            case ast.Name() | ast.Attribute():
                name = _name(ast.unparse(node))
                return self.vars[name] if name in self.vars else self.wrong(f"no variable is called '{name}'", line)
            case ast.BoolOp(op=op, values=[first, *others]):
                result = read(first)
                for other in others:
                    result = _binary(_BINARY[_SYMBOL_OF[type(op)]], result, read(other))
                return result
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _SYMBOL_OF:
                return _binary(_BINARY[_SYMBOL_OF[type(op)]], read(a), read(b))
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _SYMBOL_OF:
                return _binary(_BINARY[_SYMBOL_OF[type(op)]], read(a), read(b))
            case ast.Subscript(value=buffer, slice=index):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                return tile.Load(self.buffer(buffer, line), tuple(read(i) for i in indices))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]):
                return self.call(name, args, read, line)
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id="ptx"), slice=dtype),
                args=[ast.Constant(value=str() as text), *args],
                keywords=[],
            ):
                return tile.Ptx(text, tuple(read(a) for a in args), self.dtype(ast.unparse(dtype), line))
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name), slice=dtype), args=args, keywords=[]):
                return tile.Call(name, tuple(read(a) for a in args), self.dtype(ast.unparse(dtype), line))
        raise self.wrong(f"'{ast.unparse(node)}' is no expression of tile IR", line)

    def call(self, name: str, args: list[ast.expr], read: Callable[[ast.expr], tile.Expr], line: _Line) -> tile.Expr:
        match name, args:
            case "cast", [a, dtype]:
                return tile.Cast(read(a), self.dtype(ast.unparse(dtype), line))
            case "neg", [a]:
                return _unary("neg", read(a))
            case "select", [condition, then, orelse]:
                chosen = read(then)
                return tile.Select(read(condition), chosen, read(orelse), chosen.dtype)
            case ("min", [a, b]) | ("max", [a, b]):
                return _binary("min" if name == "min" else "max", read(a), read(b))
        if name in BY_NAME and len(args) == 1:
            named = self.dtype(name, line)
            match args[0]:
                case ast.Constant(value=str() as text):
                    return tile.Const(self.number(text, line), named)
                case ast.Constant(value=int() | float() as value):
                    return tile.Const(value, named)
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                    return tile.Const(-value, named)
            return tile.Cast(read(args[0]), named)
        values = tuple(read(a) for a in args)
        return tile.Call(name, values, values[0].dtype)


def _name(text: str) -> str:
    return text.replace(_LETTER, "%")


def _unary(op: str, a: tile.Expr) -> tile.Unary:
    return tile.Unary("not", a, BOOL) if op == "not" else tile.Unary("neg", a, a.dtype)


def _binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Binary:
    return tile.Binary(op, a, b, BOOL if op in tile.COMPARISONS or op in ("and", "or") else a.dtype)
