"""Syntax tree to tile IR: constants evaluated (-D overrides them), one kernel chosen, its body elaborated."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.diag import Label, Warn, fail, unheard, warning
from tilec.ir.expr import SMALL_FLOATS, as_size, cast
from tilec.ir.tile import Buffer, Extent, Kernel, Var
from tilec.ir.types import BOOL, INT32, NARROW, DType
from tilec.ops.python import NAMES
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_dtype, as_extents, bind, nearest
from tilec.ops.values import EXPR_TYPES, Foreign, Function, Member, Value, describe
from tilec.passes import dynamic
from tilec.passes.evaluate import Evaluator
from tilec.passes.fold import fold_expr
from tilec.passes.functions import check_assert, first_line, kind, run, run_function, unpack
from tilec.passes.outside import with_values
from tilec.passes.rasterise import rasterised
from tilec.passes.scope import Binding, Scope
from tilec.passes.statements import Body
from tilec.records import dataclass
from tilec.source import NOWHERE, SourceFile, Span
from tilec.syntax import ast

Define = int | float | bool | str

_KERNEL = Signature(
    "T.Kernel",
    (
        Parameter("threads", 128, keyword_only=True),
        Parameter("prelude", None, supported=False, keyword_only=True),
    ),
    variadic=True,
)
_TENSOR = Signature("T.Tensor", (Parameter("shape"), Parameter("dtype", "float32")))
_TENSOR_NAMES = ("T.Tensor", "T.Buffer")

_WARP = 32
_MAX_THREADS = 1024
# y and z; x may be larger than any program needs (CUDA programming guide, technical specifications).
_MAX_GRID_YZ = 65535
_MAX_GRID_X = 2**31 - 1


def entries(module: ast.Module) -> tuple[str, ...]:
    """The names of the kernels in a file, in order."""
    return tuple(f.name for f in _kernels(module))


def elaborate(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = unheard,
) -> Kernel:
    """The kernel `entry`, or the only one, as tile IR. `defines` replace constants of the file; `warn` is told what is
    odd but not wrong."""
    function = _choose(module, source, entry)
    constants = _Constants(dict(defines or {}))
    if kind(function) == "kernel":
        constants.run(module)
        constants.check_all_used()
        return _kernel(function, Scope(constants.scope, "the function"), warn)
    for keyword in (k for d in function.decorators if isinstance(d, ast.Call) for k in d.keywords):
        if keyword.name == "pass_configs":
            help_text = "fast math is asked for with --fast-math"
            warn(
                warning("hint-not-used", "pass_configs is not looked at", keyword.span, "it is ignored", help=help_text)
            )
    constants.parameters = tuple(p.name for p in function.params)
    constants.run(module)
    constants.check_all_used()
    made = constants.made_by(function)
    assert isinstance(made.node, ast.Function)
    return _kernel(made.node, Scope(made.scope, "the function"), warn)


# ---- which kernel ----------------------------------------------------------------------------------------------------


def _kernels(module: ast.Module) -> list[ast.Function]:
    """The functions that are kernels, and those that make one: a kernel stands in them."""
    functions = [s for s in module.body if isinstance(s, ast.Function)]
    return [f for f in functions if any(isinstance(n, ast.Function) and kind(n) == "kernel" for n in ast.walk(f))]


def _choose(module: ast.Module, source: SourceFile, entry: str | None) -> ast.Function:
    kernels = {f.name: f for f in _kernels(module)}
    if entry is not None:
        if entry not in kernels:
            near = nearest(entry, kernels)
            help_text = f"did you mean {near}?" if near else f"the file has {', '.join(kernels) or 'none'}"
            fail("unknown-entry", f"{source.path} has no kernel {entry}", help=help_text)
        return kernels[entry]
    if not kernels:
        function = next((s for s in module.body if isinstance(s, ast.Function)), None)
        fail(
            "no-kernel",
            f"{source.path} has no kernel",
            function.name_span if function else None,
            "a function, but not a kernel" if function else "",
            help="write @T.prim_func above the function",
        )
    if len(kernels) > 1:
        first, *others = kernels.values()
        fail(
            "which-entry",
            f"{source.path} has {len(kernels)} kernels",
            first.name_span,
            "one of them",
            secondary=tuple(Label(f.name_span, "another") for f in others),
            help=f"choose with --entry {first.name}",
        )
    (only,) = kernels.values()
    return only


# ---- the top of the file ---------------------------------------------------------------------------------------------


def _builtins() -> Scope:
    names = ["T", "tilelang", "math", *(n for n in NAMES if "." not in n)]
    return Scope(None, "the language", names={name: Binding(Member(name), NOWHERE) for name in names})


class _Constants:
    """Runs the statements of the file, each constant taking its value from -D where one is given."""

    def __init__(self, defines: dict[str, Define]) -> None:
        self.defines = defines
        self.scope = Scope(_builtins())
        self.evaluator = Evaluator(self.scope)
        self.defined: dict[str, Span] = {}
        self.constants: list[str] = []
        self.parameters: tuple[str, ...] = ()

    def run(self, module: ast.Module) -> None:
        for statement in module.body:
            self._statement(statement)

    def check_all_used(self) -> None:
        known = (*self.parameters, *self.constants)
        for name in self.defines:
            if name in known:
                continue
            near = nearest(name, known)
            listed = ", ".join(known)
            fail(
                "unknown-define",
                f"-D {name} names no constant of the file",
                help=f"did you mean {near}?" if near else f"the constants are {listed}" if known else None,
            )

    def made_by(self, factory: ast.Function) -> Function:
        """The kernel that a function of the file makes, its arguments taken from -D or their defaults."""
        scope = Scope(self.scope, factory.name, is_function=True)
        for p in factory.params:
            if p.kind:
                fail("unsupported-syntax", "the arguments of a kernel's function have names", p.span)
            if p.default is not None:
                value = self.evaluator.value(p.default)
                scope.bind(p.name, self._override(p.name, value, p.span) if p.name in self.defines else value, p.span)
            elif p.name in self.defines:
                scope.bind(p.name, self.defines[p.name], p.span)
            else:
                fail(
                    "missing-define",
                    f"{factory.name} needs a value for `{p.name}`",
                    p.span,
                    help=f"compile with -D {p.name}=…, or give it a default",
                )
        self.evaluator.scope = scope
        made = run_function(self.evaluator, factory)
        if not isinstance(made, Function) or made.kind != "kernel":
            fail(
                "no-kernel",
                f"{factory.name} returns no kernel",
                factory.name_span,
                f"it returns {describe(made)}",
                help="return the function under @T.prim_func",
            )
        return made

    def _statement(self, node: ast.Stmt) -> None:
        match node:
            case ast.Import():
                self._import(node)
            case ast.Assign(targets=targets, value=value):
                argument = self.evaluator.argument(value)
                for target in targets:
                    self._define(target, argument)
            case ast.AnnotatedAssign(target=target, value=value) if value is not None:
                self._define(target, self.evaluator.argument(value))
            case ast.Function():
                self._claim(node.name, node.name_span)
                self.scope.bind(node.name, Function(node, self.scope, kind(node)), node.name_span)
            case ast.Foreign(name=name, mistake=mistake):
                self.scope.bind(name, Foreign(mistake), node.span)
            case ast.Evaluate(value=ast.String()) | ast.Pass():
                return
            case ast.Assert():
                check_assert(self.evaluator, node)
            case ast.If(condition=ast.Compare(first=ast.Name(id="__name__"))):
                # What a Python run would do with the file is not part of it here.
                return
            case ast.If(condition=condition, then=then, orelse=orelse):
                for statement in then if self.evaluator.decided(condition) else orelse:
                    self._statement(statement)
            case ast.For() | ast.AugmentedAssign() | ast.Raise():
                run(self.evaluator, node)
            case _:
                fail(
                    "misplaced-statement",
                    "only constants and functions stand at the top of the file",
                    first_line(node),
                )

    def _import(self, node: ast.Import) -> None:
        for name in node.names:
            full = f"{node.module}.{name.name}" if node.module else name.name
            local = name.alias or (name.name if node.module else name.name.split(".")[0])
            meaning = {"tilelang.language": "T", "tilelang": "tilelang", "math": "math"}.get(full, full)
            if not name.alias and not node.module:
                meaning = local
            if full.startswith("tilelang.language."):
                meaning = f"T.{full.removeprefix('tilelang.language.')}"
            self.scope.bind(local, Member(meaning), name.span)

    def _claim(self, name: str, span: Span) -> None:
        if name in self.defined:
            first = Label(self.defined[name], "first here")
            fail("duplicate-definition", f"`{name}` is defined twice", span, secondary=(first,))
        self.defined[name] = span

    def _define(self, target: ast.Expr, argument: Argument) -> None:
        match target:
            case ast.Name(id=name):
                self._claim(name, target.span)
                self.constants.append(name)
                value = argument.value
                if name in self.defines and name not in self.parameters:
                    value = self._override(name, value, target.span)
                self.scope.bind(name, value, target.span)
            case ast.Tuple(items=items) | ast.List(items=items):
                for item, value in zip(items, unpack(items, argument, target.span), strict=True):
                    if isinstance(item, ast.Starred):
                        fail("bad-target", "this cannot be assigned to", item.span)
                    self._define(item, Argument(value, argument.span))
            case _:
                fail("bad-target", "this cannot be assigned to", target.span, "a constant has a plain name")

    def _override(self, name: str, written: Value, span: Span) -> Value:
        given: Value = self.defines[name]
        if isinstance(written, DType):
            return as_dtype(Argument(given, span))
        number_for_text = isinstance(written, str) and not isinstance(given, str)
        text_for_number = isinstance(written, int | float) and isinstance(given, str)
        if number_for_text or text_for_number:
            fail(
                "bad-define",
                f"-D {name}={given} has the wrong type",
                span,
                f"the file has {describe(written)} here",
            )
        return given


# ---- the function ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the with statement says."""

    grid: tuple[Extent, ...]
    threads: int


def _kernel(function: ast.Function, scope: Scope, warn: Warn) -> Kernel:
    body = Body(scope, warn=warn)
    params = tuple(_parameter(body, p, function) for p in function.params)
    launch = _launch_statement(body, function)
    body.unique.taken.update(dynamic.names(body.scope))
    assert isinstance(launch.context, ast.Call)
    call = bind(_KERNEL, *body.arguments(launch.context), launch.context.span)
    shape = _Launch(_grid(call), _threads(call))
    block_vars = _block_vars(body, launch, len(shape.grid))
    for var, extent in zip(block_vars, shape.grid, strict=True):
        if isinstance(extent, int):
            body.ranges[var.name] = (0, extent - 1)
    body.block(launch.body)
    statements = with_values(tuple(body.out), body.hints.outside, body.unique.take)
    if body.hints.panels is not None:
        block_vars, renumbered = rasterised(block_vars, shape.grid, *body.hints.panels)
        statements = (*renumbered, *statements)
    kernel = Kernel(
        function.name,
        params,
        shape.grid,
        block_vars,
        shape.threads,
        tuple(body.buffers),
        statements,
        function.name_span,
        tuple(body.hints.layouts.values()),
    )
    return dynamic.with_sizes(kernel)


def _launch_statement(body: Body, function: ast.Function) -> ast.With:
    """The `with T.Kernel(…)`; before it, constants may be computed."""
    launch: ast.With | None = None
    for statement in function.body:
        if isinstance(statement, ast.With) and isinstance(statement.context, ast.Call):
            if body.callee(statement.context) != "T.Kernel":
                body.statement(statement)
            if launch is not None:
                first = Label(launch.context.span, "the first")
                fail("misplaced-statement", "a second T.Kernel", statement.context.span, secondary=(first,))
            launch = statement
        elif launch is not None and not isinstance(statement, ast.Pass):
            fail("misplaced-statement", "nothing may follow the T.Kernel block", first_line(statement))
        else:
            body.statement(statement)
            if body.out or body.buffers:
                fail(
                    "misplaced-statement",
                    "this belongs inside `with T.Kernel(…):`",
                    first_line(statement),
                    "before the launch, only constants can be computed",
                )
    if launch is None:
        fail(
            "missing-kernel",
            f"{function.name} launches nothing",
            function.name_span,
            help="write `with T.Kernel(grid, threads=128) as bx:` around the body",
        )
    return launch


def _parameter(body: Body, node: ast.Parameter, function: ast.Function) -> Buffer | Var:
    if node.name in body.scope.names:
        fail("duplicate-definition", f"parameter `{node.name}` appears twice", node.span)
    if node.annotation is None:
        fail(
            "missing-type",
            f"parameter `{node.name}` has no type",
            node.span,
            help=f"write `{node.name}: T.Tensor((M, N), dtype)` or `{node.name}: T.float32`",
        )
    if node.default is not None:
        fail("unsupported-syntax", "kernel parameters have no defaults", node.default.span)
    tensor = _tensor(body, node.annotation)
    if tensor is not None:
        shape, dtype = tensor
        param: Buffer | Var = Buffer(body.unique.take(node.name), shape, dtype, "global", node.span)
    else:
        param = Var(body.unique.take(node.name), _scalar_type(body, node.annotation))
    body.scope.bind(node.name, param, node.span)
    return param


def _tensor(body: Body, annotation: ast.Expr) -> tuple[tuple[Extent, ...], DType] | None:
    """Shape and dtype of `T.Tensor((M, K), dtype)` or `T.Tensor[(M, K), dtype]`."""
    match annotation:
        case ast.Call() if body.callee(annotation) in _TENSOR_NAMES:
            call = bind(_TENSOR, *body.arguments(annotation), annotation.span)
        case ast.Subscript(value=value, indices=indices) if _is_tensor(body, value):
            items = [i for i in indices if not isinstance(i, ast.Slice)]
            call = bind(_TENSOR, [body.argument(i) for i in items], {}, annotation.span)
        case _:
            return None
    return tuple(map(_folded, as_extents(call["shape"], "the shape of a tensor"))), as_dtype(call["dtype"])


def _folded(extent: Extent) -> Extent:
    return extent if isinstance(extent, int) else fold_expr(extent)


def _is_tensor(body: Body, node: ast.Expr) -> bool:
    value = body.value(node)
    return isinstance(value, Member) and value.path in _TENSOR_NAMES


def _scalar_type(body: Body, annotation: ast.Expr) -> DType:
    argument = body.argument(annotation)
    if isinstance(argument.value, Member) and argument.value.path.startswith("T."):
        body.refuse_name(argument.value.path, annotation.span)
    if not isinstance(argument.value, DType | str):
        fail(
            "wrong-argument",
            "a parameter is a tensor or a scalar",
            annotation.span,
            f"this is {describe(argument.value)}",
            help="write T.Tensor((M, N), dtype) or T.float32",
        )
    dtype = as_dtype(argument)
    if dtype == BOOL or dtype in SMALL_FLOATS or dtype in NARROW:
        help_text = "pass T.int32" if dtype == BOOL else "pass T.float32"
        fail("wrong-dtype", f"a scalar parameter cannot be a {dtype}", annotation.span, help=help_text)
    return dtype


def _grid(call: Call) -> tuple[Extent, ...]:
    if not 1 <= len(call.variadic) <= 3:
        fail("wrong-argument", f"a grid has one to three dimensions, not {len(call.variadic)}", call.span)
    limits = (_MAX_GRID_X, _MAX_GRID_YZ, _MAX_GRID_YZ)
    return tuple(_grid_extent(a, limit) for a, limit in zip(call.variadic, limits, strict=False))


def _grid_extent(argument: Argument, limit: int) -> Extent:
    value = argument.value
    if isinstance(value, EXPR_TYPES):
        if as_size(value) is None:
            fail(
                "runtime-grid",
                "the grid must be known at launch",
                argument.span,
                f"depends on {describe(value)}",
                help="make it of integers and of integer parameters, with + - * // % T.min and T.max",
            )
        return _folded(cast(value, INT32))
    if not isinstance(value, int) or isinstance(value, bool):
        fail("wrong-argument", "grid extents are integers", argument.span, f"this is {describe(value)}")
    if not 1 <= value <= limit:
        fail("wrong-shape", f"a grid extent lies between 1 and {limit}", argument.span, f"this is {value}")
    return value


def _threads(call: Call) -> int:
    argument = call["threads"]
    dims = argument.value if isinstance(argument.value, tuple) else (argument.value,)
    threads = 1
    for dim in dims:
        if not isinstance(dim, int) or isinstance(dim, bool) or len(dims) > 3:
            call.refuse("threads", "an integer, or up to three, known at compile time")
        assert isinstance(dim, int)
        threads *= dim
    if threads % _WARP or not _WARP <= threads <= _MAX_THREADS:
        fail(
            "bad-threads",
            f"a block has {_WARP} to {_MAX_THREADS} threads, in whole warps of {_WARP}",
            argument.span,
            f"this is {threads}",
        )
    return threads


def _block_vars(body: Body, launch: ast.With, rank: int) -> tuple[Var, ...]:
    target = launch.target
    if target is None:
        # Nobody asks which block it is.
        return tuple(Var(body.unique.take(name)) for name in ("bx", "by", "bz")[:rank])
    names = body.target_names(target, rank)
    variables = tuple(Var(body.unique.take(name.id)) for name in names)
    for name, var in zip(names, variables, strict=True):
        body.scope.bind(name.id, var, name.span)
    return variables
