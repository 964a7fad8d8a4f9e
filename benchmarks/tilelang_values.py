"""What a TileLang script gives its kernels, read off its text: nothing of it runs.

The arguments are those of the script's own calls, evaluated as far as constants, defaults, the command line's options,
dataclasses, plain functions and the shapes of torch's tensors go; then the first of the configurations to tune over.
"""

from __future__ import annotations

import ast
import copy
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

MOST_STEPS, MOST_TURNS = 100_000, 64
_MAKES_TENSORS = ("randn", "rand", "empty", "zeros", "ones", "randint", "full", "normal", "randperm", "arange")
_SAME_SHAPE = (
    "cuda", "half", "bfloat16", "float", "to", "contiguous", "requires_grad_", "clone", "detach", "uniform_", "normal_",
    "type", "div_", "mul_", "add_", "abs", "sigmoid", "softmax", "cpu", "int", "bool", "long", "zero_", "fill_",
    "random_", "clamp", "clamp_", "exp",
)  # fmt: skip
_DTYPE = re.compile(r"(u?int|float)(\d+)?(_\w+)?|bfloat16|half|long|bool")
_SAME_TYPE = {"half": "float16", "float": "float32", "int": "int32", "long": "int64"}
"""Other names of types, in torch."""
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "bool": bool, "str": str, "max": max, "min": min, "len": len, "abs": abs, "sum": sum,
    "range": range, "list": list, "tuple": tuple, "dict": dict, "zip": zip, "sorted": sorted, "round": round,
    "enumerate": enumerate, "math.ceil": math.ceil, "math.sqrt": math.sqrt, "math.log2": math.log2,
    "math.floor": math.floor, "math.prod": math.prod, "itertools.product": itertools.product,
    "product": itertools.product, "isinstance": isinstance,
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length(), "cdiv": lambda a, b: -(-a // b),
    "ceildiv": lambda a, b: -(-a // b), "reversed": reversed, "any": any, "all": all,
    "itertools.accumulate": itertools.accumulate,
}  # fmt: skip


UNKNOWN = object()
"""An item of a tuple whose value is not to be seen in the text."""


class Unknown(Exception):
    """The value of an expression is not to be seen in the text."""


class Text(str):
    """Python that -D takes as it is: a name of the language, or a lambda."""


class Dtype(str):
    """A type of elements, by its name without `T.` or `torch.`."""

    @property
    def bits(self) -> int:
        """Return the number in the type's name, as 16 for float16; 8 for a name without a number."""
        found = re.search(r"\d+", self)
        return int(found[0]) if found else 8


_FLOAT32 = Dtype("float32")


@dataclass(frozen=True)
class Tensor:
    """A tensor of torch: its shape, the type of its elements, and its elements where a list gives them."""

    shape: tuple[int, ...]
    dtype: Dtype = _FLOAT32
    items: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return an element, or for a slice a tensor of elements; raise Unknown if the elements are not known."""
        if self.items is None:
            raise Unknown
        taken = self.items[index]
        return Tensor((len(taken),), self.dtype, taken) if isinstance(index, slice) else taken


@dataclass
class Record:
    """An instance of a class of the file: its fields with their defaults."""

    fields: dict[str, Any]


@dataclass
class Script:
    """One file, and those beside it whose calls count too."""

    tree: ast.Module
    beside: list[Script] = field(default_factory=list)
    imported: dict[str, Script] = field(default_factory=dict)
    """The files that the functions which it imports from its folder are in."""
    steps: int = 0

    def __post_init__(self) -> None:
        every = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        self.functions = {n.name: n for n in reversed(every)}  # the outermost of a name
        self.classes = {n.name: n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef)}
        self.options = dict(self._options())
        self.around: dict[int, ast.FunctionDef] = {}
        for function in every:
            for node in ast.walk(function):
                if node is not function:
                    self.around[id(node)] = function  # the innermost comes last
        expecting = (n for n in ast.walk(self.tree) if isinstance(n, ast.With) and "raises" in ast.unparse(n.items[0]))
        self.failing = {id(part) for node in expecting for part in ast.walk(node)}  # calls of mistakes on purpose
        self._known: dict[int, dict[str, Any]] = {}
        self._before: dict[int, dict[str, Any]] = {}  # what names stand for where a call is
        self._depth = 0  # of functions whose value is computed
        self._loops = 0

    # ---- the kernel's arguments --------------------------------------------------------------------------------------

    def arguments(self, name: str, kernels: tuple[str, ...] = ()) -> dict[str, Any]:
        """What is known of the arguments of a top-level function, and of the sizes that it reads off its tensors.

        What nothing says of them is as in the calls of the file's other `kernels`, by the names of the parameters.
        """
        function = self.functions[name]
        found = self._arguments_of_calls(function)
        for configuration in (self.first_configuration(function), self._tuned_configuration(name)):
            found |= {k: v for k, v in configuration.items() if found.get(k) is None}
        parameters = {a.arg for a in _parameters(function)}
        has_default = set(self._defaults(function, self.known_in(None))) if found else set()
        for other in kernels:
            if other != name:
                alike = self._arguments_of_calls(self.functions[other])
                for key, value in alike.items():
                    if key in parameters and key not in has_default:
                        found.setdefault(key, value)
        for key in [k for k, v in found.items() if isinstance(v, Tensor)]:
            tensor = found.pop(key)
            for size, extent in _sizes(function, key, tensor):
                found.setdefault(size, extent)
        main = self.functions.get("main")
        for key, value in (self.known_in(main) if main in self.tree.body else {}).items():
            if key in parameters:  # of the same name in the script's own `main`
                found.setdefault(key, value)
        return {
            k: v for k, v in found.items() if isinstance(v, int | float | str | list | tuple) or k not in parameters
        }

    def _arguments_of_calls(self, function: ast.FunctionDef) -> dict[str, Any]:
        """Return what the calls of a function give its parameters, in this file and in those beside it."""
        found: dict[str, Any] = {}
        has_default = set(self._defaults(function, self.known_in(None)))
        for script in (self, *self.beside):
            for call in script.calls(function.name):
                given = script.given(call, function)
                # Another call adds what this one does not say, but no options that it left out.
                found |= {k: v for k, v in given.items() if k not in found and not (found and k in has_default)}
        return found

    def calls(self, name: str) -> Iterator[ast.Call]:
        """Those of it, of its methods (`compile`), of what a call of it gave, and of the autograd function that it is
        the `forward` of."""
        names = {name, *self._applied(name), *self._find_other_names(name)}
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        for node in sorted(nodes, key=lambda each: (id(each) in self.failing, each.lineno, each.col_offset)):
            match node:
                case ast.Call(func=ast.Name(id=called)) if called in names:
                    yield node
                case ast.Call(func=ast.Attribute(value=ast.Name(id=called))) if called == name:
                    yield node
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="apply")) if name == "forward":
                    if owner in self.classes:
                        yield node
                case _:
                    pass

    def _find_other_names(self, name: str) -> Iterator[str]:
        """Yield the names that the script gives a kernel of its own, as `kernel = gemm_pair if paired else gemm`."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=alias)], value=value) if alias not in self.functions:
                    chosen = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                    if any(isinstance(each, ast.Name) and each.id == name for each in chosen):
                        yield alias
                case _:
                    pass

    def _applied(self, name: str) -> Iterator[str]:
        """`attention`, where `attention = Attention.apply`, and `name` is that class's `forward`."""
        if name != "forward":
            return
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=alias)], value=ast.Attribute(value=ast.Name(id=owner), attr="apply")
                ) if owner in self.classes:
                    yield alias
                case _:
                    pass

    def given(self, call: ast.Call, function: ast.FunctionDef) -> dict[str, Any]:
        known = self.known_at(call)
        parameters = [a.arg for a in _parameters(function)]
        if parameters[:1] == ["ctx"]:  # a torch.autograd.Function's `forward`, called by `apply`
            parameters = parameters[1:]
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(call.func, ast.Name) or call.func.attr == "apply":
            for number, argument in enumerate(call.args):
                if isinstance(argument, ast.Starred):
                    try:
                        for parameter, value in zip(
                            parameters[number:], self.value(argument.value, known), strict=False
                        ):
                            pairs.append((parameter, ast.Constant(value)))
                    except (Unknown, TypeError):
                        pass
                    break
                if number < len(parameters):
                    pairs.append((parameters[number], argument))
        found: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                pairs.append((keyword.arg, keyword.value))
            else:
                with suppress(Unknown, TypeError, ValueError):
                    found |= dict(self.value(keyword.value, known))
        for parameter, node in pairs:
            try:
                found[parameter] = self.value(node, known)
            except Unknown:
                continue
        return found

    def first_configuration(self, function: ast.FunctionDef) -> dict[str, Any]:
        for decorator in function.decorator_list:
            match decorator:
                case ast.Call(func=callee, keywords=keywords) if ast.unparse(callee).endswith("autotune"):
                    for keyword in keywords:
                        if keyword.arg == "configs":
                            try:
                                listed = self.value(keyword.value, self.known_in(None))
                                return dict(listed[0])
                            except (Unknown, TypeError, LookupError, ValueError):
                                return {}
                case _:
                    pass
        return {}

    def _tuned_configuration(self, name: str) -> dict[str, Any]:
        """Return the first of the configurations with which the script tunes what this function returns."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="from_kernel"), keywords=keywords):
                    said = {keyword.arg: keyword.value for keyword in keywords}
                    known = self.known_at(node)
                    if "configs" in said and name in _called_names(self.around.get(id(node)) or self.tree):
                        with suppress(Unknown, TypeError, LookupError, ValueError):
                            return dict(self.value(said["configs"], known)[0])
                case _:
                    pass
        return {}

    # ---- what names stand for ----------------------------------------------------------------------------------------

    def known_at(self, node: ast.AST) -> dict[str, Any]:
        """Return what names stand for where a call is, or else at the end of the function around it."""
        known = self.known_in(self.around.get(id(node)))
        return self._before.get(id(node), known)

    def known_in(self, function: ast.FunctionDef | None) -> dict[str, Any]:
        """The names of the file, and of a function in it, with what they are given last."""
        key = id(function)
        if key in self._known:
            return self._known[key]
        self._known[key] = {}  # for functions that call themselves
        if function is None:
            known: dict[str, Any] = {}
            body = self.tree.body
        else:
            known = dict(self.known_in(self.around.get(id(function))))
            given: dict[str, Any] = {}
            has_default = set(self._defaults(function, known))
            calls = ((script, call) for script in (self, *self.beside) for call in script.calls(function.name))
            for script, call in itertools.islice(calls, 8):
                if script.around.get(id(call)) is not function:
                    is_first = not given
                    for parameter, value in script.given(call, function).items():
                        if given.get(parameter) is None and (is_first or parameter not in has_default):
                            given[parameter] = value
            known |= self._defaults(function, known) | self._parametrized(function) | given
            body = function.body
            for parameter in _parameters(function):
                if known.get(parameter.arg) is None and parameter.arg in self.options:
                    known[parameter.arg] = self.options[parameter.arg]
        self._run(body, known)
        self._known[key] = known
        return known

    def _parametrized(self, function: ast.FunctionDef) -> dict[str, Any]:
        """Return the first values that `pytest.mark.parametrize` gives the parameters of a test."""
        found: dict[str, Any] = {}
        for decorator in function.decorator_list:
            match decorator:
                case ast.Call(func=ast.Attribute(attr="parametrize"), args=[named, listed, *_]):
                    with suppress(Unknown, TypeError, LookupError):
                        names = self.value(named, {})
                        names = names.replace(",", " ").split() if isinstance(names, str) else names
                        first = self._first_item(listed)
                        found |= {names[0]: first} if len(names) == 1 else dict(zip(names, first, strict=False))
                case _:
                    pass
        return found

    def _first_item(self, listed: ast.expr) -> Any:
        """Return the first item of a list, the others of which may not be known. `pytest.param` holds one."""
        known = self.known_in(None)
        if not isinstance(listed, ast.List | ast.Tuple):
            return next(iter(self.value(listed, known)))
        match listed.elts[0]:
            case ast.Call(func=ast.Attribute(attr="param"), args=given):
                values = tuple(self.value(each, known) for each in given)
                return values[0] if len(values) == 1 else values
            case first:
                return self.value(first, known)

    def _defaults(self, function: ast.FunctionDef, known: dict[str, Any]) -> dict[str, Any]:
        parameters = [*function.args.posonlyargs, *function.args.args]
        pairs = [*zip(reversed(parameters), reversed(function.args.defaults), strict=False)]
        pairs += [(p, d) for p, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
        found = {}
        for parameter, default in pairs:
            try:
                found[parameter.arg] = self.value(default, known)
            except Unknown:
                continue
        return found

    def _run(self, body: list[ast.stmt], known: dict[str, Any]) -> None:
        for statement in body:
            self._statement(statement, known)

    def _statement(self, node: ast.stmt, known: dict[str, Any]) -> None:
        if not self._depth and not hasattr(node, "body"):
            here = dict(known)
            for part in ast.walk(node):
                if isinstance(part, ast.Call):
                    self._before.setdefault(id(part), here)
        match node:
            case ast.Assign(targets=targets, value=value):
                try:
                    given = self.value(value, known)
                except Unknown:
                    if not isinstance(value, ast.Tuple):
                        return
                    given = self._known_items(value, known)
                for target in targets:
                    _bind(target, given, known)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                try:
                    _bind(target, self.value(value, known), known)
                except Unknown:
                    return
            case ast.If(test=test, body=body, orelse=orelse):
                try:
                    self._run(body if self.value(test, known) else orelse, known)
                except Unknown:
                    self._run(orelse, known)
                    self._run(body, known)
            case ast.For(target=target, iter=over, body=body):
                turns: Any = [UNKNOWN]
                with suppress(Unknown, TypeError):
                    turns = self.value(over, known)
                # A list has a script's cases, of which the first counts; a range computes something.
                is_computing = isinstance(turns, range) and not self._loops
                self._loops += 1
                for turn in itertools.islice(turns, MOST_TURNS if is_computing else 1):
                    _bind(target, turn, known)
                    self._run(body, known)
                self._loops -= 1
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name)), args=[item])):
                with suppress(Unknown):
                    if isinstance(known.get(name), list):
                        known[name] = [*known[name], self.value(item, known)]
            case ast.With(body=body) | ast.Try(body=body) | ast.While(body=body):
                self._run(body, known)
            case _:
                pass

    def _options(self) -> Iterator[tuple[str, Any]]:
        """Of the command line, by name, with their defaults."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*_, ast.Constant(value=str(option))]):
                    said = {k.arg: k.value for k in node.keywords}
                    default = said.get("default")
                    name = option.lstrip("-").replace("-", "_")
                    if default is not None:
                        try:
                            yield name, ast.literal_eval(default)
                        except ValueError:
                            if isinstance(default, ast.Attribute):
                                is_type = _DTYPE.fullmatch(default.attr)
                                yield name, Dtype(default.attr) if is_type else default.attr
                    elif "action" in said and ast.unparse(said["action"]) == "'store_true'":
                        yield name, False
                case _:
                    pass

    # ---- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, known: dict[str, Any]) -> Any:
        """What an expression gives, or `Unknown`."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unknown
        try:
            return self._value(node, known)
        except Unknown:
            raise
        except Exception as error:
            raise Unknown from error

    def _value(self, node: ast.expr, known: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in known:
                    raise Unknown
                return known[name]
            case ast.Attribute():
                return self._attribute(node, known)
            case ast.BinOp(left=left, op=op, right=right):
                sides = self.value(left, known), self.value(right, known)
                tensor = next((side for side in sides if isinstance(side, Tensor)), None)
                return _BINARY[type(op)](*sides) if tensor is None else tensor
            case ast.UnaryOp(op=op, operand=operand):
                given = self.value(operand, known)
                return not given if isinstance(op, ast.Not) else -given if isinstance(op, ast.USub) else given
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _BINARY[type(op)](self.value(left, known), self.value(right, known))
            case ast.BoolOp(op=op, values=values):
                found = [self.value(v, known) for v in values]
                return all(found) if isinstance(op, ast.And) else next((v for v in found if v), found[-1])
            case ast.IfExp(test=test, body=then, orelse=orelse):
                return self.value(then if self.value(test, known) else orelse, known)
            case ast.Tuple(elts=items):
                return tuple(self._items(items, known))
            case ast.List(elts=items):
                return list(self._items(items, known))
            case ast.Dict(keys=keys, values=values):
                return {self.value(k, known): self.value(v, known) for k, v in zip(keys, values, strict=True) if k}
            case ast.Subscript(value=owner, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                ends = [None if end is None else self.value(end, known) for end in (lower, upper)]
                return self.value(owner, known)[slice(*ends)]
            case ast.Subscript(value=owner, slice=index):
                place = self.value(index, known)
                if isinstance(owner, ast.Name) and owner.id not in known and _DTYPE.fullmatch(str(place)):
                    return Dtype(place)  # an imported table of the names that types have elsewhere
                return self.value(owner, known)[place]
            case ast.ListComp(elt=element, generators=clauses) | ast.GeneratorExp(elt=element, generators=clauses):
                return [self.value(element, inner) for inner in self._clauses(clauses, known)]
            case ast.DictComp(key=key, value=value, generators=clauses):
                return {self.value(key, inner): self.value(value, inner) for inner in self._clauses(clauses, known)}
            case ast.Call():
                return self._call(node, known)
            case ast.JoinedStr(values=parts):
                return "".join(str(self.value(part, known)) for part in parts)
            case ast.FormattedValue(value=value):
                return self.value(value, known)
            case ast.Lambda():
                return Text(ast.unparse(_Filler(known).visit(copy.deepcopy(node))))
            case _:
                raise Unknown

    def _known_items(self, value: ast.Tuple, known: dict[str, Any]) -> list[Any]:
        """Return the items of a tuple as it is written, with `UNKNOWN` for those that the text does not show."""
        found: list[Any] = []
        for item in value.elts:
            try:
                found += self._items([item], known)
            except Unknown:
                if isinstance(item, ast.Starred):
                    break  # how many it stands for is not known
                found.append(UNKNOWN)
        return found

    def _items(self, items: list[ast.expr], known: dict[str, Any]) -> Iterator[Any]:
        for item in items:
            if isinstance(item, ast.Starred):
                yield from self.value(item.value, known)
            else:
                yield self.value(item, known)

    def _clauses(self, clauses: list[ast.comprehension], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not clauses:
            yield known
            return
        first, *rest = clauses
        for item in self.value(first.iter, known):
            inner = dict(known)
            _bind(first.target, item, inner)
            if all(self.value(c, inner) for c in first.ifs):
                yield from self._clauses(rest, inner)

    def _attribute(self, node: ast.Attribute, known: dict[str, Any]) -> Any:
        match node.value:
            case ast.Attribute(value=ast.Name(id="torch"), attr="version"):
                return None if node.attr == "hip" else "12.8"
            case ast.Name(id=owner) if owner.endswith("dtypes") and _DTYPE.fullmatch(node.attr):
                return Dtype(_SAME_TYPE.get(node.attr, node.attr))
            case ast.Name(id="torch" | "T" | "tilelang" as owner):
                if owner == "T" and re.fullmatch(r"[a-z]+[\d_a-z]*\dx\d+", node.attr):
                    return Text(f"T.{node.attr}")
                if _DTYPE.fullmatch(node.attr):
                    return Dtype(_SAME_TYPE.get(node.attr, node.attr))
                if owner == "T":
                    return Text(f"T.{node.attr}")
                raise Unknown
            case (
                ast.Attribute(value=ast.Name(id="T" | "tilelang"), attr="GemmWarpPolicy")
                | ast.Name(id="GemmWarpPolicy")
            ):
                return f"T.GemmWarpPolicy.{node.attr}"
            case ast.Name(id="ctx"):
                return self._kept(node.attr)
            case ast.Name(id=name) if name not in known:
                if name in ("args", "opt", "opts", "config", "cfg") and node.attr in self.options:
                    return self.options[node.attr]
                raise Unknown
        value = self.value(node.value, known)
        if isinstance(value, Tensor) and node.attr in ("shape", "dtype"):
            return getattr(value, node.attr)
        if isinstance(value, Dtype) and node.attr in ("bits", "itemsize"):
            return value.bits if node.attr == "bits" else value.bits // 8
        if isinstance(value, Record) and node.attr in value.fields:
            return value.fields[node.attr]
        raise Unknown

    def _kept(self, name: str) -> Any:
        """Return what the `forward` of an autograd function keeps in its context for `backward`."""
        forward = self.functions.get("forward")
        if forward is None:
            raise Unknown
        known = self.known_in(forward)
        for node in ast.walk(forward):
            match node:
                case ast.Call(func=ast.Attribute(attr="save_for_backward"), args=saved) if name == "saved_tensors":
                    return self._known_items(ast.Tuple(list(saved)), known)
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="ctx"), attr=attr)], value=value):
                    if attr == name:
                        return self.value(value, known)
                case _:
                    pass
        raise Unknown

    def _call(self, node: ast.Call, known: dict[str, Any]) -> Any:
        match node.func:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _MAKES_TENSORS:
                return Tensor(self._shape(node, known, name), self._dtype(node, known, _FLOAT32))
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name.endswith("_like"):
                return self.value(node.args[0], known)
            case ast.Attribute(value=owner, attr=name) if name in _SAME_SHAPE:
                made = self.value(owner, known)
                if isinstance(made, Tensor):
                    dtype = Dtype(_SAME_TYPE.get(name, name)) if _DTYPE.fullmatch(name) else made.dtype
                    return replace(made, dtype=self._dtype(node, known, dtype))
                raise Unknown
            case ast.Attribute(value=owner, attr="max" | "min" | "sum" | "item" | "tolist" | "numel" | "dim" as name):
                return self._of_items(self.value(owner, known), name)
            case ast.Attribute(value=owner, attr="as_torch"):
                return self.value(owner, known)
            case ast.Name(id="dtype") | ast.Attribute(attr="dtype") if len(node.args) == 1:
                return Dtype(self.value(node.args[0], known))
            case ast.Attribute(value=owner, attr="size"):
                made = self.value(owner, known)
                if isinstance(made, Tensor):
                    return made.shape[self.value(node.args[0], known)] if node.args else made.shape
                raise Unknown
            case ast.Attribute(value=owner, attr="view" | "reshape") if node.args:
                dtype = self._dtype(ast.Call(owner, [ast.Attribute(owner, "dtype")], []), known, _FLOAT32)
                shape = self._shape(node, known, "")
                if -1 in shape:
                    rest = math.prod(self.value(owner, known).shape) // -math.prod(shape)
                    shape = tuple(rest if extent == -1 else extent for extent in shape)
                return Tensor(shape, dtype)
            case ast.Attribute(value=owner, attr="unsqueeze"):
                shape, place = list(self.value(owner, known).shape), self.value(node.args[0], known)
                shape.insert(place if place >= 0 else len(shape) + 1 + place, 1)
                return Tensor(tuple(shape), self.value(owner, known).dtype)
            case ast.Attribute(value=ast.Name(id="torch"), attr="tensor"):
                match node.args[0]:
                    case ast.List(elts=items) | ast.Tuple(elts=items):
                        listed = self._known_items(ast.Tuple(items), known)
                    case other:
                        listed = list(self.value(other, known))
                if any(isinstance(item, list | tuple) for item in listed):
                    raise Unknown
                return Tensor((len(listed),), self._dtype(node, known, Dtype("int64")), tuple(listed))
            case ast.Attribute(value=owner, attr="parse_args"):
                return Record(self.options)
            case ast.Attribute(attr="items" | "keys" | "values" | "get" as name, value=owner):
                return getattr(self.value(owner, known), name)(*[self.value(a, known) for a in node.args])
            case ast.Attribute(attr="replace" | "split" | "lower" | "upper" | "format" as name, value=owner):
                return getattr(self.value(owner, known), name)(*[self.value(a, known) for a in node.args])
            case ast.Name(id="getattr"):
                owner, name = node.args[:2]
                return self.value(ast.Attribute(owner, self.value(name, known)), known)
            case _:
                pass
        called = ast.unparse(node.func)
        if called in ("T.Fragment", "T.Layout"):
            return self._layout(node, known)
        if called in self.functions or called in self.imported:
            # Its value may not depend on the arguments that are unknown.
            given = self._known_items(ast.Tuple(node.args), known)
            named = self._known_items(ast.Tuple([k.value for k in node.keywords]), known)
            keywords = {k.arg: v for k, v in zip(node.keywords, named, strict=False) if k.arg}
            owner = self.imported.get(called, self)
            return owner._called(owner.functions[called], given, keywords)
        given = list(self._items(node.args, known))
        keywords = {k.arg: self.value(k.value, known) for k in node.keywords if k.arg}
        if called in self.classes:
            return self._instance(self.classes[called], given, keywords)
        function = _FUNCTIONS.get(called) or _FUNCTIONS.get(called.rpartition(".")[2])
        if function is None:
            raise Unknown
        return function(*given, **keywords)

    def _layout(self, node: ast.Call, known: dict[str, Any]) -> Text:
        """Return a layout as -D takes it: its map, a function beside the call or a lambda, becomes a lambda."""
        given = [repr(self.value(each, known)) for each in node.args]
        for each in node.keywords:
            local = self.around[id(node)].body if id(node) in self.around else self.tree.body
            function = next(
                (n for n in local if isinstance(n, ast.FunctionDef) and n.name == ast.unparse(each.value)), None
            )
            value = _as_lambda(function) if function is not None else each.value
            of = self.value(value, known)
            given.append(f"{each.arg}={of if isinstance(of, Text) else repr(of)}")
        return Text(f"{ast.unparse(node.func)}({', '.join(given)})")

    def _dtype(self, node: ast.Call, known: dict[str, Any], otherwise: Dtype) -> Dtype:
        """Return the first type of elements among a torch call's `dtype=` and arguments, or else `otherwise`."""
        for each in (*(k.value for k in node.keywords if k.arg == "dtype"), *node.args):
            with suppress(Unknown):
                if isinstance(found := self.value(each, known), Dtype):
                    return found
        return otherwise

    def _of_items(self, tensor: Any, name: str) -> Any:
        """Return what a torch method computes of a tensor's elements or shape, or of one number; else raise Unknown."""
        if isinstance(tensor, int | float) and name == "item":
            return tensor
        if not isinstance(tensor, Tensor):
            raise Unknown
        if name in ("numel", "dim"):
            return math.prod(tensor.shape) if name == "numel" else len(tensor.shape)
        if tensor.items is None or UNKNOWN in tensor.items:
            raise Unknown
        made: dict[str, Callable[..., Any]] = {"max": max, "min": min, "sum": sum, "tolist": list}
        return made[name](tensor.items)

    def _shape(self, node: ast.Call, known: dict[str, Any], name: str) -> tuple[int, ...]:
        given = list(node.args)
        for keyword in node.keywords:
            if keyword.arg == "size":
                given = [keyword.value]
                break
        else:
            if name == "randint":
                given = [a for a in given if isinstance(a, ast.Tuple | ast.List | ast.Name)][-1:] or given[2:3]
            if name == "full":
                given = given[:1]
        found: list[Any] = []
        for each in given:
            value = self.value(each.value if isinstance(each, ast.Starred) else each, known)
            found += value if isinstance(value, tuple | list) else [value]
        return tuple(found)

    def _instance(self, node: ast.ClassDef, given: list[Any], keywords: dict[str, Any]) -> Record:
        known = self.known_in(None)
        fields: dict[str, Any] = {}
        names = []
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                names.append(statement.target.id)
                if statement.value is not None:
                    try:
                        fields[statement.target.id] = self.value(statement.value, {**known, **fields})
                    except Unknown:
                        continue
        return Record({**fields, **dict(zip(names, given, strict=False)), **keywords})

    def _called(self, function: ast.FunctionDef, given: list[Any], keywords: dict[str, Any]) -> Any:
        known = dict(self.known_in(None))
        known |= self._defaults(function, known)
        known |= dict(zip([a.arg for a in _parameters(function)], given, strict=False)) | keywords
        known = {k: v for k, v in known.items() if v is not UNKNOWN}
        self._depth += 1
        try:
            made = self._returned(function.body, known)
            if made is UNKNOWN:
                raise Unknown
            return made
        finally:
            self._depth -= 1

    def _returned(self, body: list[ast.stmt], known: dict[str, Any]) -> Any:
        for statement in body:
            match statement:
                case ast.Return(value=ast.Tuple() as value):
                    return self._known_items(value, known)
                case ast.Return(value=ast.expr() as value):
                    return self.value(value, known)
                case ast.If(test=test, body=then, orelse=orelse):
                    try:
                        is_true = self.value(test, known)
                    except Unknown:
                        if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                            raise
                        self._statement(statement, known)
                        continue
                    if (made := self._returned(then if is_true else orelse, known)) is not UNKNOWN:
                        return made
                case _:
                    self._statement(statement, known)
        return UNKNOWN


class _Filler(ast.NodeTransformer):
    """Writes the values of names that -D would not know into a lambda: numbers, types and names of the language."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """Return the lambda with its body filled in, but for its own parameters."""
        self.known = {k: v for k, v in self.known.items() if k not in {a.arg for a in node.args.args}}
        node.body = self.visit(node.body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the number, type or text known for a name as an expression, or the name itself."""
        value = self.known.get(node.id)
        if isinstance(value, Dtype):
            return ast.Attribute(ast.Name("T"), str(value))
        if isinstance(value, Text):
            return ast.parse(value, mode="eval").body
        return ast.Constant(value) if isinstance(value, int | float) else node


def _as_lambda(function: ast.FunctionDef) -> ast.Lambda:
    """Return a function of assignments and one result as a lambda; raise Unknown for any other."""
    inner = _Filler({})
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                inner.known[name] = Text(ast.unparse(inner.visit(copy.deepcopy(value))))
            case ast.Return(value=ast.expr() as value):
                return ast.Lambda(function.args, inner.visit(copy.deepcopy(value)))
            case _:
                break
    raise Unknown


def _called_names(tree: ast.AST) -> set[str]:
    """Return the names of the functions that a part of a script calls."""
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _bind(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    match target:
        case ast.Name(id=name):
            if value is not UNKNOWN:
                known[name] = value
        case ast.Tuple(elts=names) | ast.List(elts=names):
            try:
                for each, item in zip(names, value, strict=False):
                    _bind(each, item, known)
            except TypeError:
                return
        case _:
            return


def _sizes(function: ast.FunctionDef, parameter: str, tensor: Tensor) -> Iterator[tuple[str, int]]:
    """The names that the type of a parameter has for the extents of the tensor that it is given."""
    types = [a.annotation for a in _parameters(function) if a.arg == parameter and a.annotation is not None]
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name == parameter:
                types.append(annotation)
            case _:
                pass
    named = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for annotation in types:
        match annotation:
            case ast.Call(args=[shape, *_]) | ast.Subscript(slice=ast.Tuple(elts=[shape, *_])):
                shape = named.get(shape.id) if isinstance(shape, ast.Name) else shape
            case _:
                continue
        listed = shape.elts if isinstance(shape, ast.Tuple | ast.List) else []
        for dimension, extent in zip(listed, tensor.shape, strict=False):
            if isinstance(dimension, ast.Name) and isinstance(extent, int):
                yield dimension.id, extent
