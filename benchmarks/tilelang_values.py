"""What the expressions and statements of a script are worth, read off its text: nothing of it runs.

Constants, defaults, the options of its command line, dataclasses, plain functions, and the shapes of torch's tensors.
"""

from __future__ import annotations

import ast
import copy
import itertools
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tilelang_objects import DTYPE, FLOAT32, UNKNOWN, Dtype, LambdaFiller, Record, Tensor, Text, Unknown, as_lambda

MOST_STEPS, MOST_TURNS = 100_000, 64
_MAKES_TENSORS = ("randn", "rand", "empty", "zeros", "ones", "randint", "full", "normal", "randperm", "arange")
_SAME_SHAPE = (
    "cuda", "half", "bfloat16", "float", "to", "contiguous", "requires_grad_", "clone", "detach", "uniform_", "normal_",
    "type", "div_", "mul_", "add_", "abs", "sigmoid", "softmax", "cpu", "int", "bool", "long", "zero_", "fill_",
    "random_", "clamp", "clamp_", "exp",
)  # fmt: skip
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


@dataclass
class Evaluator(ABC):
    """A script, and what its names and expressions stand for. Who calls its functions is not known here."""

    tree: ast.Module
    imported: dict[str, Evaluator] = field(default_factory=dict)
    """The files that the functions which it imports from its folder are in."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """What these names stand for, whatever the script gives them."""
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
        self.before: dict[int, dict[str, Any]] = {}  # what names stand for where a call is
        self._depth = 0  # of functions whose value is computed
        self._loops = 0

    @abstractmethod
    def known_in(self, function: ast.FunctionDef | None) -> dict[str, Any]:
        """Return what the names of the file stand for at its end, and those of a function in it at the function's."""

    # ---- statements --------------------------------------------------------------------------------------------------

    def find_defaults(self, function: ast.FunctionDef, known: dict[str, Any]) -> dict[str, Any]:
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

    def run_statements(self, body: list[ast.stmt], known: dict[str, Any]) -> None:
        for statement in body:
            self._statement(statement, known)

    def _statement(self, node: ast.stmt, known: dict[str, Any]) -> None:
        if not self._depth and not hasattr(node, "body"):
            here = dict(known)
            for part in ast.walk(node):
                if isinstance(part, ast.Call):
                    self.before.setdefault(id(part), here)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in self.assumed:
                known[name] = self.assumed[name]
            case ast.Assign(targets=targets, value=value):
                try:
                    given = self.value(value, known)
                except Unknown:
                    if not isinstance(value, ast.Tuple | ast.Dict):
                        return
                    is_dictionary = isinstance(value, ast.Dict)
                    given = self._known_entries(value, known) if is_dictionary else self._known_items(value, known)
                for target in targets:
                    bind_names(target, given, known)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                try:
                    bind_names(target, self.value(value, known), known)
                except Unknown:
                    return
            case ast.If(test=test, body=body, orelse=orelse):
                try:
                    self.run_statements(body if self.value(test, known) else orelse, known)
                except Unknown:
                    self.run_statements(orelse, known)
                    self.run_statements(body, known)
            case ast.For(target=target, iter=over, body=body):
                turns: Any = [UNKNOWN]
                with suppress(Unknown, TypeError):
                    turns = self.value(over, known)
                # A list has a script's cases, of which the first counts; a range computes something.
                is_computing = isinstance(turns, range) and not self._loops
                self._loops += 1
                for turn in itertools.islice(turns, MOST_TURNS if is_computing else 1):
                    bind_names(target, turn, known)
                    self.run_statements(body, known)
                self._loops -= 1
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name)), args=[item])):
                with suppress(Unknown):
                    if isinstance(known.get(name), list):
                        known[name] = [*known[name], self.value(item, known)]
            case ast.With(body=body) | ast.Try(body=body) | ast.While(body=body):
                self.run_statements(body, known)
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
                                is_type = DTYPE.fullmatch(default.attr)
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
                return self.value(owner, known)[self._index(ast.Slice(lower, upper, None), known)]
            case ast.Subscript(value=owner, slice=ast.Tuple(elts=[*parts])) if any(
                isinstance(part, ast.Slice) for part in parts
            ):
                return self.value(owner, known)[tuple(self._index(part, known) for part in parts)]
            case ast.Subscript(value=owner, slice=index):
                place = self.value(index, known)
                if isinstance(owner, ast.Name) and owner.id not in known and DTYPE.fullmatch(str(place)):
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
                return Text(ast.unparse(LambdaFiller(known).visit(copy.deepcopy(node))))
            case _:
                raise Unknown

    def _index(self, part: ast.expr, known: dict[str, Any]) -> Any:
        """Return one index of a subscript, a number or a slice."""
        if not isinstance(part, ast.Slice):
            return self.value(part, known)
        ends = (part.lower, part.upper, part.step)
        return slice(*(None if end is None else self.value(end, known) for end in ends))

    def _known_entries(self, value: ast.Dict, known: dict[str, Any]) -> dict[Any, Any]:
        """Return the entries of a dictionary as it is written, without those that the text does not show."""
        found: dict[Any, Any] = {}
        for key, item in zip(value.keys, value.values, strict=True):
            with suppress(Unknown):
                if key is not None:
                    found[self.value(key, known)] = self.value(item, known)
        return found

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
            bind_names(first.target, item, inner)
            if all(self.value(c, inner) for c in first.ifs):
                yield from self._clauses(rest, inner)

    def _attribute(self, node: ast.Attribute, known: dict[str, Any]) -> Any:
        match node.value:
            case ast.Attribute(value=ast.Name(id="torch"), attr="version"):
                return None if node.attr == "hip" else "12.8"
            case ast.Name(id=owner) if owner.endswith("dtypes") and DTYPE.fullmatch(node.attr):
                return Dtype(_SAME_TYPE.get(node.attr, node.attr))
            case ast.Name(id="torch" | "T" | "tilelang" as owner):
                if owner == "T" and re.fullmatch(r"[a-z]+[\d_a-z]*\dx\d+", node.attr):
                    return Text(f"T.{node.attr}")
                if DTYPE.fullmatch(node.attr):
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
        if isinstance(value, Tensor) and node.attr in ("T", "mT"):
            return Tensor((*value.shape[:-2], *value.shape[:-3:-1]), value.dtype)
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
                return Tensor(self._shape(node, known, name), self._dtype(node, known, FLOAT32))
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name.endswith("_like"):
                return self.value(node.args[0], known)
            case ast.Attribute(value=owner, attr=name) if name in _SAME_SHAPE:
                made = self.value(owner, known)
                if isinstance(made, Tensor):
                    dtype = Dtype(_SAME_TYPE.get(name, name)) if DTYPE.fullmatch(name) else made.dtype
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
                dtype = self._dtype(ast.Call(owner, [ast.Attribute(owner, "dtype")], []), known, FLOAT32)
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
            value = as_lambda(function) if function is not None else each.value
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
        known |= self.find_defaults(function, known)
        known |= dict(zip([a.arg for a in list_parameters(function)], given, strict=False)) | keywords
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


def list_parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def bind_names(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    match target:
        case ast.Name(id=name):
            if value is not UNKNOWN:
                known[name] = value
        case ast.Tuple(elts=names) | ast.List(elts=names):
            try:
                for each, item in zip(names, value, strict=False):
                    bind_names(each, item, known)
            except TypeError:
                return
        case _:
            return
