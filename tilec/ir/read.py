"""Parser of tile IR's text, the inverse of `ir.text`: a kernel can be stored, edited and compiled from it.

Expressions are Python's, parsed with `ast`; every type follows from the declarations and from the constants, which name
theirs unless they are int32, float32 or bool. Spans refer to the text that is parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, NoReturn, TypeVar, get_args

from tilec.ir import tile
from tilec.ir.expr import make_constant
from tilec.ir.operations import operations
from tilec.ir.text import SYMBOLS
from tilec.ir.types import BOOL, FLOAT32, INT32, TYPES_BY_NAME, DType
from tilec.support import readers, schema
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_HEADER = re.compile(r"kernel (\w+)\((.*)\), blocks (.*), (\d+) threads")
_DECLARATION = re.compile(
    rf"({'|'.join((*get_args(tile.Scope), 'scalar'))}) ([\w.]+): (\w+)(?:\[(.+?)\])?(?:, strides \((.+)\))?"
    r"(?:, table (\d+))?"
)
_CLUSTER = re.compile(r"cluster (\d+), (\d+), (\d+)")
_RASTER = re.compile(r"raster (?:none|panels\((\d+), (rows|columns)\))")
_MIN_BLOCKS = re.compile(r"blocks-of-a-multiprocessor (\d+)")
_PINNED = re.compile(r"layout ([\w.]+): (.*)")
_SUBTILE = re.compile(r"subtile ([\w.]+): (\d+(?:, \d+)*)")
_LOOP = re.compile(r"for (.*) in (serial|pipelined|unroll|parallel)\((.*)\):")
_ATOMIC = re.compile(rf"(?:([\w.]+): (\w+) = )?atomic_({'|'.join(get_args(tile.Atomic))}) ([\w.]+\[.*)")
_BIND = re.compile(r"(%?[\w.]+): (\w+) = (.*)")
_STORE = re.compile(r"([\w.]+\[.*?\]) = (.*)")
_OPERATION = re.compile(r"([a-z_]\w*)(?: (\S.*))?")
_INTERNAL = re.compile(r"%(?=\w)")
_PERCENT_LETTER = "\N{RUNIC ARLAUG SYMBOL}"
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
class _SourceLine:
    number: int
    depth: int
    text: str

    @property
    def span(self) -> Span:
        """Return the line's position in the text, from its indentation to its end."""
        first = 2 * self.depth + 1
        return Span(self.number, first, self.number, first + len(self.text))


class _Arguments(NamedTuple):
    positional: list[ast.expr]
    named: dict[str, ast.expr]


def read_kernel(text: str) -> tile.Kernel:
    """Return the kernel that a text of tile IR describes; raises `bad-tile-ir` for anything else, or too deep
    nesting."""
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = re.split(r"(?:^|  )#", line)[0].rstrip()
        if stripped:  # neither empty nor only a comment
            indent = len(stripped) - len(stripped.lstrip())
            lines.append(_SourceLine(number, indent // 2, stripped.lstrip()))
            if lines[-1].depth > readers.DEEPEST:
                raise_error(
                    "bad-tile-ir",
                    f"this is not tile IR: blocks are nested more than {readers.DEEPEST} deep",
                    lines[-1].span,
                )
    return _KernelParser(lines).read_kernel()


class _KernelParser:
    def __init__(self, lines: list[_SourceLine]) -> None:
        self.lines = lines
        self.at = 0
        self.vars: dict[str, tile.Var] = {}
        self.buffers: dict[str, tile.Buffer] = {}

    # ---- lines -------------------------------------------------------------------------------------------------------

    def fail_at(self, what: str, line: _SourceLine | None = None) -> NoReturn:
        """Raise `bad-tile-ir` at a line; without one, at the next line to be read, or the last."""
        if line is None and not self.lines:
            raise_error("bad-tile-ir", "this is not tile IR: the file is empty")
        line = line or self.lines[min(self.at, len(self.lines) - 1)]
        raise_error("bad-tile-ir", f"this is not tile IR: {what}", line.span)

    def peek_line(self, depth: int) -> _SourceLine | None:
        """Return the next line, not moving on, if it is at `depth`; None if it is shallower or at the end, else
        fail."""
        if self.at == len(self.lines) or self.lines[self.at].depth < depth:
            return None
        line = self.lines[self.at]
        if line.depth > depth:
            self.fail_at("unexpected indentation", line)
        return line

    def read_kernel(self) -> tile.Kernel:
        """Read all the lines as one kernel: header, declarations, options, body; fails where anything follows."""
        header = self.peek_line(0)
        match = _HEADER.fullmatch(header.text) if header else None
        if header is None or match is None:
            self.fail_at("expected 'kernel NAME(…), blocks …, N threads'")
        self.at += 1
        names = match[2].split(", ") if match[2] else []
        declarations: list[tuple[re.Match[str], _SourceLine]] = []
        while taken := self.take_line(_DECLARATION):
            declarations.append(taken)
        # Extents may refer to scalars declared anywhere.
        scalars = (
            tile.Var(found[2], self.read_dtype(found[3], line)) for found, line in declarations if found[1] == "scalar"
        )
        self.vars = {v.name: v for v in scalars}
        declared = [self.read_declaration(found, line) for found, line in declarations]
        grid, block_vars = self.read_grid(match[3], header)
        params, buffers = declared[: len(names)], declared[len(names) :]
        if [p.name for p in params] != names:
            self.fail_at(f"the parameters {', '.join(names)} are not declared first, in this order", header)
        tiles = tuple(b for b in buffers if isinstance(b, tile.Buffer))
        self.buffers = {b.name: b for b in declared if isinstance(b, tile.Buffer)}
        self.vars = {
            v.name: v
            for v in (*params, *block_vars, tile.THREAD, tile.WARPGROUP, tile.BLOCK_WARP)
            if isinstance(v, tile.Var)
        }
        layouts, subtiles = tuple(self.read_layout_annotations()), tuple(self.read_subtiles())
        cluster = self.read_option(
            _CLUSTER, lambda found, span: tile.Cluster((int(found[1]), int(found[2]), int(found[3])), span)
        )
        raster = self.read_option(
            _RASTER, lambda found, span: tile.Raster(int(found[1] or 0), found[2] != "columns", span)
        )
        min_blocks = self.read_option(_MIN_BLOCKS, lambda found, span: tile.MinBlocks(int(found[1]), span))
        outputs = self.read_names("returns", tuple(p.name for p in params if isinstance(p, tile.Buffer)))
        asks = self.read_names("asks", get_args(tile.KernelOption))
        body = self.read_body(1)
        if self.at < len(self.lines):
            self.fail_at("no text may follow the kernel")
        return tile.Kernel(
            match[1], tuple(params), grid, block_vars, int(match[4]), tiles, body, header.span, layouts, outputs, asks,
            cluster or tile.NO_CLUSTER, raster, subtiles, min_blocks,
        )  # fmt: skip

    def take_line(self, pattern: re.Pattern[str]) -> tuple[re.Match[str], _SourceLine] | None:
        """Move past the next line and return its match, if it is in the heading and matches the pattern; else None, and
        stay."""
        line = self.peek_line(1)
        match = None if line is None else pattern.fullmatch(line.text)
        if line is None or match is None:
            return None
        self.at += 1
        return match, line

    def read_option(self, pattern: re.Pattern[str], make: Callable[[re.Match[str], Span], T]) -> T | None:
        """Return the option that `make` makes of the next line and move past it; None where that does not match."""
        taken = self.take_line(pattern)
        return None if taken is None else make(taken[0], taken[1].span)

    def read_subtiles(self) -> Iterator[tile.Subtile]:
        """Yield, for each `subtile` line, the tile and the numbers of parts that it is split into."""
        while taken := self.take_line(_SUBTILE):
            found, line = taken
            parts = tuple(map(int, found[2].split(", ")))
            yield tile.Subtile(self.find_buffer(ast.Name(found[1]), line), parts, line.span)

    def read_names(self, word: str, known: tuple[T, ...]) -> tuple[T, ...]:
        """Return the names on a line that begins with `word`, and move past it; empty without such a line, an error if
        unknown."""
        line = self.peek_line(1)
        if line is None or not line.text.startswith(f"{word} "):
            return ()
        names = line.text.removeprefix(f"{word} ").split(", ")
        if strange := [name for name in names if name not in known]:
            self.fail_at(f"unknown name '{strange[0]}'", line)
        self.at += 1
        return tuple(k for name in names for k in known if k == name)

    def read_layout_annotations(self) -> Iterator[tile.LayoutAnnotation]:
        """Yield the layout of a tile from each `layout` line, or fail: a swizzle, a placement, or threads and
        registers.
        """
        while taken := self.take_line(_PINNED):
            found, line = taken
            buffer, node = self.find_buffer(ast.Name(found[1]), line), self.parse_python(found[2], line)
            match node:
                case ast.Call(func=ast.Name(id="swizzle"), args=[width]):
                    yield tile.LayoutAnnotation(buffer, self.read_literal(width, int, line), line.span)
                case ast.Call(
                    func=ast.Name(id="placement"),
                    args=[shape, size, ast.Lambda(args=ast.arguments(args=names), body=place)],
                ):
                    variables, (read,) = self.read_index_lambda(names, (place,), line)
                    placement = tile.Placement(
                        self.read_integers(shape, line), variables, read, self.read_literal(size, int, line)
                    )
                    yield tile.LayoutAnnotation(buffer, placement, line.span)
                case _:
                    yield tile.LayoutAnnotation(buffer, self.read_loop_layout(node, line), line.span)

    def read_grid(self, text: str, header: _SourceLine) -> tuple[tuple[tile.Extent, ...], tuple[tile.Var, ...]]:
        """Return the extents and block variables of a grid written `NAME < EXTENT, …`, or fail."""
        extents: list[tile.Extent] = []
        variables: list[tile.Var] = []
        for part in self.parse_arguments(text, header).positional:
            match part:
                case ast.Compare(left=ast.Name() | ast.Attribute() as name, ops=[ast.Lt()], comparators=[extent]):
                    variables.append(tile.Var(_restore_percent(ast.unparse(name))))
                    extents.append(self.read_extent(extent, header))
                case _:
                    self.fail_at(f"expected 'NAME < EXTENT', found '{ast.unparse(part)}'", header)
        return tuple(extents), tuple(variables)

    def read_extent(self, node: ast.expr, line: _SourceLine) -> tile.Extent:
        """Return a size from a syntax node: a number for an int32 constant, else an expression."""
        read = self.read_node(node, line)
        return int(read.value) if isinstance(read, tile.Const) and read.dtype == INT32 else read

    def read_declaration(self, match: re.Match[str], line: _SourceLine) -> tile.Buffer | tile.Var:
        """Return the scalar or the buffer, with shape and strides, that a matched declaration declares; fails without a
        shape."""
        scope, name, dtype = match[1], match[2], self.read_dtype(match[3], line)
        if scope == "scalar":
            return tile.Var(name, dtype)
        if not match[4]:
            self.fail_at(f"{name} has no shape", line)
        shape = tuple(self.read_extent(extent, line) for extent in self.parse_arguments(match[4], line).positional)
        steps = self.parse_arguments(match[5], line).positional if match[5] else None
        strides = None if steps is None else tuple(self.read_extent(step, line) for step in steps)
        table_rank = int(match[6] or 0)
        return tile.Buffer(name, shape, dtype, _SCOPES[scope], line.span, strides=strides, table_rank=table_rank)

    def read_dtype(self, name: str, line: _SourceLine | None = None) -> DType:
        """Return the element type of this name, or fail at the line."""
        if name not in TYPES_BY_NAME:
            self.fail_at(f"there is no type '{name}'", line)
        return TYPES_BY_NAME[name]

    # ---- statements --------------------------------------------------------------------------------------------------

    def read_body(self, depth: int) -> tuple[tile.Stmt, ...]:
        """Return the statements at this depth up to a shallower line or `else:`; variables that they declare end with
        them."""
        before = dict(self.vars)
        stmts: list[tile.Stmt] = []
        while (line := self.peek_line(depth)) and line.text != "else:":
            stmts.append(self.read_statement(line))
        self.vars = before
        return tuple(stmts)

    def read_statement(self, line: _SourceLine) -> tile.Stmt:
        """Return the statement at this line with those nested in it, and move past it, or fail; declares a bind's
        variable.
        """
        if line.text.startswith("if ") and line.text.endswith(":"):
            return self.read_branch(line)
        if line.text.startswith("while ") and line.text.endswith(":"):
            condition = self.read_expression(line.text[len("while ") : -1], line)
            self.at += 1
            return tile.While(condition, self.read_body(line.depth + 1), line.span)
        if match := _LOOP.fullmatch(line.text):
            names, kind, arguments = match[1], match[2], self.parse_arguments(match[3], line)
            self.at += 1
            if kind == "parallel":
                return self.read_parallel(names, arguments, line)
            return self.read_for(names, kind, arguments, line)
        self.at += 1
        if line.text == "break":
            return tile.Break(line.span)
        if match := _ATOMIC.fullmatch(line.text):
            previous = tile.Var(match[1], self.read_dtype(match[2], line)) if match[1] else None
            return self.read_atomic(previous, _ATOMICS[match[3]], match[4], line)
        if match := _BIND.fullmatch(line.text):
            value = self.read_expression(match[3], line)
            var = tile.Var(match[1], self.read_dtype(match[2], line))
            self.vars[var.name] = var
            return tile.Bind(var, value, line.span)
        word, _, rest = line.text.partition(" ")
        if word in ("print", "stop"):
            text, *values = self.parse_arguments(rest, line).positional
            return tile.Print(
                self.read_literal(text, str, line),
                tuple(self.read_node(v, line) for v in values),
                line.span,
                stops=word == "stop",
            )
        if match := _OPERATION.fullmatch(line.text):
            rest = match[2] or ""
            if rest.startswith("= "):
                self.fail_at("a store has indices, a bind has a type", line)
            return self.read_operation(match[1], rest, line)
        if match := _STORE.fullmatch(line.text):
            # The first `] = ` ends the target: nothing inside indices has an equals sign with blanks around it.
            target = self.read_expression(match[1], line)
            if isinstance(target, tile.Load):
                return tile.Store(target.buffer, target.indices, self.read_expression(match[2], line), line.span)
        raise self.fail_at("expected a statement", line)

    def read_branch(self, line: _SourceLine) -> tile.If:
        """Return the `if` at this line with the statements of both branches, and move past them."""
        condition = self.read_expression(line.text[len("if ") : -1], line)
        self.at += 1
        then = self.read_body(line.depth + 1)
        orelse: tuple[tile.Stmt, ...] = ()
        if (after := self.peek_line(line.depth)) and after.text == "else:":
            self.at += 1
            orelse = self.read_body(line.depth + 1)
        return tile.If(condition, then, orelse, line.span)

    def read_parallel(self, names: str, arguments: _Arguments, line: _SourceLine) -> tile.Parallel:
        """Return a parallel nest from its extents, options by name and body lines, or fail; declares its variables."""
        extents = tuple(self.read_literal(argument, int, line) for argument in arguments.positional)
        given = arguments.named
        width, layout, asynchronous, versions = (
            given.pop(name, None) for name in ("width", "layout", "asynchronous", "versions")
        )
        self.reject_leftovers(given, "parallel", line)
        named = {} if versions is None else self.read_versions(versions, line)
        variables = tuple(tile.Var(name) for name in names.split(", "))
        self.vars |= {v.name: v for v in variables}
        return tile.Parallel(
            variables, extents, self.read_body(line.depth + 1), line.span,
            None if width is None else self.read_literal(width, int, line),
            None if layout is None else self.read_loop_layout(layout, line),
            asynchronous is not None and self.read_literal(asynchronous, bool, line),
            tuple(named), tuple(named.values()),
        )  # fmt: skip

    def read_versions(self, node: ast.expr, line: _SourceLine) -> dict[str, tile.Expr]:
        """Return the index expression by tile name that a dictionary `{TILE: INDEX, …}` gives, or fail."""
        if isinstance(node, ast.Dict):
            named = zip(node.keys, node.values, strict=True)
            found = {
                _restore_percent(tile_.id): self.read_node(index, line)
                for tile_, index in named
                if isinstance(tile_, ast.Name)
            }
            if len(found) == len(node.keys):
                return found
        raise self.fail_at("versions are written {TILE: INDEX, …}", line)

    def read_loop_layout(self, node: ast.expr, line: _SourceLine) -> tile.LoopLayout:
        """Return the layout that `fragment([EXTENT, …], lambda …: (THREAD, INDEX), COPIES)` describes, or fail."""
        match node:
            case ast.Call(
                func=ast.Name(id="fragment"),
                args=[shape, ast.Lambda(args=ast.arguments(args=names), body=ast.Tuple(elts=[thread, index])), *more],
            ) if len(more) < 2:
                given = (thread,) if isinstance(index, ast.Constant) and index.value is None else (thread, index)
                variables, read = self.read_index_lambda(names, given, line)
                of_index = read[1] if len(read) > 1 else None
                copies = self.read_literal(more[0], int, line) if more else 1
                return tile.LoopLayout(self.read_integers(shape, line), variables, read[0], of_index, line.span, copies)
        raise self.fail_at("a layout is written fragment([EXTENT, …], lambda NAME, …: (THREAD, INDEX), COPIES)", line)

    def read_index_lambda(
        self, names: list[ast.arg], values: tuple[ast.expr, ...], line: _SourceLine
    ) -> tuple[tuple[tile.Var, ...], tuple[tile.Expr, ...]]:
        """Return a lambda's parameters as variables, and its values as expressions read with these variables
        visible."""
        variables = tuple(tile.Var(_restore_percent(name.arg)) for name in names)
        before = dict(self.vars)
        self.vars |= {v.name: v for v in variables}
        read = tuple(self.read_node(value, line) for value in values)
        self.vars = before
        return variables, read

    def read_for(self, names: str, kind: str, arguments: _Arguments, line: _SourceLine) -> tile.For:
        """Return a loop of this kind from its bounds, options by name and body, or fail; declares its variable."""
        if not 2 <= len(arguments.positional) <= 3:
            self.fail_at(f"{kind} takes a start, a stop and perhaps a step", line)
        start, stop = (self.read_node(argument, line) for argument in arguments.positional[:2])
        step = self.read_literal(arguments.positional[2], int, line) if len(arguments.positional) == 3 else 1
        given = arguments.named

        def take_option(name: str, read: Callable[[ast.expr], T]) -> T | None:
            """Remove the option `name` from those given and return it as `read` reads it; None if it is not given."""
            return read(given.pop(name)) if name in given else None

        num_stages, factor = (
            take_option(n, lambda x: self.read_literal(x, int, line)) for n in ("num_stages", "factor")
        )
        stage, order = (take_option(name, lambda node: self.read_integers(node, line)) for name in ("stage", "order"))
        hints = take_option("scheduling_hints", lambda node: self.read_scheduling_hints(node, line))
        distinct_by = take_option("distinct_by", lambda node: tuple(map(str, self.read_literal(node, list, line))))
        is_dynamic = take_option("dynamically_scheduled", lambda node: self.read_literal(node, bool, line)) or False
        self.reject_leftovers(given, kind, line)
        var = tile.Var(names, start.dtype)
        self.vars[var.name] = var
        body = self.read_body(line.depth + 1)
        return tile.For(
            _KINDS[kind], var, start, stop, step, body, num_stages, stage, order, line.span, hints, factor, distinct_by,
            is_dynamic,
        )  # fmt: skip

    def read_scheduling_hints(self, node: ast.expr, line: _SourceLine) -> tile.SchedulingHints:
        """Return the scheduling hints that a dictionary of lists gives; fails for unknown names and wrong member
        types."""
        given = self.read_literal(node, dict, line)

        def read_members(name: str, kind: type[T]) -> tuple[T, ...] | None:
            """Remove the list `name` from the dictionary and return it as a tuple of `kind`, or fail; None if it is not
            there.
            """
            value = given.pop(name, None)
            if value is None:
                return None
            if not isinstance(value, list) or any(type(member) is not kind for member in value):
                self.fail_at(f"{name} is a list of {kind.__name__}", line)
            return tuple(value)

        asynchronous, groups = read_members("asynchronous", bool), read_members("groups", int)
        sync = read_members("sync", list)
        self.reject_leftovers(given, "scheduling_hints", line)
        waits = None if sync is None else tuple(tuple(waited) for waited in sync)
        return tile.SchedulingHints(asynchronous, groups, waits, line.span)

    def reject_leftovers(self, given: Collection[str], what: str, line: _SourceLine) -> None:
        """Fail at the line if any option is left: the first one is unknown."""
        if given:
            self.fail_at(f"{what} has no '{next(iter(given))}'", line)

    def read_atomic(self, previous: tile.Var | None, atomic: tile.Atomic, text: str, line: _SourceLine) -> tile.Store:
        """Return an atomic store from its element, value (unless a load) and order, or fail; declares `previous` if
        given. The order is relaxed where none is written.
        """
        arguments = self.parse_arguments(text, line)
        self.reject_leftovers(arguments.named, f"atomic_{atomic}", line)
        element, *rest = (self.read_node(a, line) for a in arguments.positional[: 1 if atomic == "load" else 2])
        orders = [ast.unparse(node) for node in arguments.positional[1 + len(rest) :]] or ["relaxed"]
        if not isinstance(element, tile.Load) or len(rest) != (atomic != "load") or len(orders) > 1:
            self.fail_at(
                f"atomic_{atomic} takes an element{', a value' * (atomic != 'load')} and perhaps an order", line
            )
        if orders[0] not in _ORDERS:
            self.fail_at(f"there is no order '{orders[0]}'", line)
        (value,) = rest or [make_constant(0, element.dtype)]
        if previous is not None:
            self.vars[previous.name] = previous
        return tile.Store(element.buffer, element.indices, value, line.span, atomic, _ORDERS[orders[0]], previous)

    def read_operation(self, name: str, rest: str, line: _SourceLine) -> tile.TileOp:
        """Return the tile operation of this name from the text of its regions and attributes; fails where its class
        refuses them."""
        arguments = self.parse_arguments(rest, line)
        regions = tuple(self.read_region(argument, line) for argument in arguments.positional)
        attributes = {key: self.read_attribute(value, line) for key, value in arguments.named.items()}
        try:
            return operations.make_operation(name, regions, attributes, line.span)
        except schema.SchemaError as error:
            self.fail_at(str(error), line)

    def read_region(self, node: ast.expr, line: _SourceLine) -> tile.Region:
        """Return the region `BUFFER[START:+EXTENT, …]`, or fail; `:` is a whole dimension, a lone index one place."""
        if not isinstance(node, ast.Subscript):
            self.fail_at(f"'{ast.unparse(node)}' is not a region of a buffer", line)
        buffer = self.find_buffer(node.value, line)
        dims = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(dims) != len(buffer.extents):
            self.fail_at(f"{buffer.name} has {len(buffer.extents)} dimensions, here are {len(dims)}", line)
        start: list[tile.Expr] = []
        extent: list[int] = []
        for dim, size in zip(dims, buffer.extents, strict=True):
            match dim:
                case ast.Slice(lower=None, upper=None) if isinstance(size, int):
                    start.append(tile.int32_const(0))
                    extent.append(size)
                case ast.Slice(lower=ast.expr() as lower, upper=ast.UnaryOp(op=ast.UAdd(), operand=count)):
                    start.append(self.read_node(lower, line))
                    extent.append(self.read_literal(count, int, line))
                case ast.Slice():
                    self.fail_at("a region is written START:+EXTENT", line)
                case _:
                    start.append(self.read_node(dim, line))
                    extent.append(1)
        return tile.Region(buffer, tuple(start), tuple(extent), line.span)

    def read_attribute(self, node: ast.expr, line: _SourceLine) -> tile.Attr:
        """Return an attribute from its syntax node: a plain value, a tuple of numbers or texts, or an expression."""
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)]):
                return self.read_number(text, line)
            case ast.List(elts=members):
                return tuple(self.read_list_member(member, line) for member in members)
        return self.read_node(node, line)

    def read_list_member(self, node: ast.expr, line: _SourceLine) -> int | str:
        """Return a list member that is an integer or a text; fails for anything else."""
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | str):
            self.fail_at(f"'{ast.unparse(node)}' is neither a number nor a text", line)
        return value

    # ---- expressions -------------------------------------------------------------------------------------------------

    def parse_python(self, text: str, line: _SourceLine) -> ast.expr:
        """Return the syntax tree of an expression, in which names may begin with %; fails where it is not Python."""
        try:
            return readers.parse_python_expression(_INTERNAL.sub(_PERCENT_LETTER, text))
        except ValueError as error:
            self.fail_at(f"'{text}' is not an expression: {error}", line)

    def parse_arguments(self, text: str, line: _SourceLine) -> _Arguments:
        """Return the positional and named arguments in the text between a call's parentheses, or fail."""
        match self.parse_python(f"f({text})", line):
            case ast.Call(func=ast.Name(id="f"), args=positional, keywords=keywords):
                named = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
                if len(named) == len(keywords):
                    return _Arguments(positional, named)
        raise self.fail_at(f"'{text}' is not a list of arguments", line)

    def read_expression(self, text: str, line: _SourceLine) -> tile.Expr:
        """Return the typed expression that a text describes, or fail."""
        return self.read_node(self.parse_python(text, line), line)

    def read_literal(self, node: ast.expr, kind: type[T], line: _SourceLine) -> T:
        """Return the value of a literal of exactly this Python type, or fail."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            value = None
        if type(value) is not kind:
            self.fail_at(f"'{ast.unparse(node)}' is no {kind.__name__}", line)
        return value

    def read_number(self, text: str, line: _SourceLine) -> float:
        """Return the float that a text spells, `inf` and `nan` included, or fail."""
        try:
            return float(text)
        except ValueError:
            self.fail_at(f"'{text}' is not a number", line)

    def read_integers(self, node: ast.expr, line: _SourceLine) -> tuple[int, ...]:
        """Return the integers of a list literal, or fail."""
        members = node.elts if isinstance(node, ast.List) else self.fail_at("expected a list of integers", line)
        return tuple(self.read_literal(member, int, line) for member in members)

    def find_buffer(self, node: ast.expr, line: _SourceLine) -> tile.Buffer:
        """Return the declared buffer that a syntax node names, or fail."""
        name = _restore_percent(ast.unparse(node))
        if name not in self.buffers:
            self.fail_at(f"no buffer is called '{name}'", line)
        return self.buffers[name]

    def read_node(self, node: ast.expr, line: _SourceLine) -> tile.Expr:
        """Return the typed expression of tile IR that a Python syntax node describes; fails for other syntax and
        unknown names."""

        def read_operand(inner: ast.expr) -> tile.Expr:
            """Return the typed expression of a nested node."""
            return self.read_node(inner, line)

        match node:
            case ast.Constant(value=bool() as value):
                return tile.Const(value, BOOL)
            case ast.Constant(value=int() | float() as value):
                return tile.Const(value, FLOAT32 if isinstance(value, float) else INT32)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return tile.Const(-value, FLOAT32 if isinstance(value, float) else INT32)
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return _make_unary("neg", read_operand(a))
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return _make_unary("not", read_operand(a))
            case ast.Name() | ast.Attribute():
                name = _restore_percent(ast.unparse(node))
                return self.vars[name] if name in self.vars else self.fail_at(f"no variable is called '{name}'", line)
            case ast.BoolOp(op=op, values=[first, *others]):
                result = read_operand(first)
                for other in others:
                    result = _make_binary(_BINARY[_SYMBOL_OF[type(op)]], result, read_operand(other))
                return result
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _SYMBOL_OF:
                return _make_binary(_BINARY[_SYMBOL_OF[type(op)]], read_operand(a), read_operand(b))
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _SYMBOL_OF:
                return _make_binary(_BINARY[_SYMBOL_OF[type(op)]], read_operand(a), read_operand(b))
            case ast.Subscript(value=buffer, slice=index):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                return tile.Load(self.find_buffer(buffer, line), tuple(read_operand(i) for i in indices))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]):
                return self.read_call(name, args, read_operand, line)
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id="ptx"), slice=dtype),
                args=[ast.Constant(value=str() as text), *args],
                keywords=[],
            ):
                return tile.Ptx(text, tuple(read_operand(a) for a in args), self.read_dtype(ast.unparse(dtype), line))
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name), slice=dtype), args=args, keywords=[]):
                return tile.Call(name, tuple(read_operand(a) for a in args), self.read_dtype(ast.unparse(dtype), line))
        raise self.fail_at(f"'{ast.unparse(node)}' is not an expression of tile IR", line)

    def read_call(
        self, name: str, args: list[ast.expr], read: Callable[[ast.expr], tile.Expr], line: _SourceLine
    ) -> tile.Expr:
        """Return the expression written as a call: a cast, neg, select, min or max, a typed constant, or a function."""
        match name, args:
            case "cast", [a, dtype]:
                return tile.Cast(read(a), self.read_dtype(ast.unparse(dtype), line))
            case "neg", [a]:
                return _make_unary("neg", read(a))
            case "select", [condition, then, orelse]:
                chosen = read(then)
                return tile.Select(read(condition), chosen, read(orelse), chosen.dtype)
            case ("min", [a, b]) | ("max", [a, b]):
                return _make_binary("min" if name == "min" else "max", read(a), read(b))
        if name in TYPES_BY_NAME and len(args) == 1:
            named = self.read_dtype(name, line)
            match args[0]:
                case ast.Constant(value=str() as text):
                    return tile.Const(self.read_number(text, line), named)
                case ast.Constant(value=int() | float() as value):
                    return tile.Const(value, named)
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                    return tile.Const(-value, named)
            return tile.Cast(read(args[0]), named)
        values = tuple(read(a) for a in args)
        return tile.Call(name, values, values[0].dtype)


def _restore_percent(text: str) -> str:
    """Return the text with the letter that stands for % put back."""
    return text.replace(_PERCENT_LETTER, "%")


def _make_unary(op: str, a: tile.Expr) -> tile.Unary:
    """Return a unary expression: `not` gives bool, `neg` the operand's type."""
    return tile.Unary("not", a, BOOL) if op == "not" else tile.Unary("neg", a, a.dtype)


def _make_binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Binary:
    """Return a binary expression: comparisons, `and` and `or` give bool, others the first operand's type."""
    return tile.Binary(op, a, b, BOOL if op in tile.COMPARISONS or op in ("and", "or") else a.dtype)
