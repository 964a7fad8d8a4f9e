"""What a TileLang script gives its kernels: the arguments of its own calls, read off its text.

`tilelang_values` evaluates them. What no call says comes from the first of the configurations to tune over, and from
the calls of the file's other kernels.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilelang_objects import Tensor, Unknown
from tilelang_values import Evaluator, list_parameters


@dataclass
class Script(Evaluator):
    """One file, and those beside it whose calls count too."""

    beside: list[Script] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        expecting = (n for n in ast.walk(self.tree) if isinstance(n, ast.With) and "raises" in ast.unparse(n.items[0]))
        self.failing = {id(part) for node in expecting for part in ast.walk(node)}  # calls of mistakes on purpose
        self._known: dict[int, dict[str, Any]] = {}

    # ---- the kernel's arguments --------------------------------------------------------------------------------------

    def arguments(self, name: str, kernels: tuple[str, ...] = ()) -> dict[str, Any]:
        """What is known of the arguments of a top-level function, and of the sizes that it reads off its tensors.

        What nothing says of them is as in the calls of the file's other `kernels`, by the names of the parameters.
        """
        chosen = self._find_choice(name)
        if chosen and not self.assumed:
            return replace(self, assumed=chosen).arguments(name, kernels)
        function = self.functions[name]
        found = self._arguments_of_calls(function)
        for configuration in (self.first_configuration(function), self._tuned_configuration(name)):
            found |= {k: v for k, v in configuration.items() if found.get(k) is None}
        parameters = {a.arg for a in list_parameters(function)}
        has_default = set(self.find_defaults(function, self.known_in(None))) if found else set()
        for other in kernels:
            if other != name:
                alike = self._arguments_of_calls(self.functions[other])
                for key, value in alike.items():
                    if key in parameters and key not in has_default:
                        found.setdefault(key, value)
        for key in [k for k, v in found.items() if isinstance(v, Tensor)]:
            tensor = found.pop(key)
            for size, extent in _sizes(function, key, tensor, found):
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
        has_default = set(self.find_defaults(function, self.known_in(None)))
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

    def _find_choice(self, name: str) -> dict[str, Any]:
        """Return what the condition must be for a script to choose this kernel, by its name: `kernel = gemm_pair if
        paired else gemm` needs `paired` to be false for `gemm`.
        """
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(
                    targets=[ast.Name()],
                    value=ast.IfExp(test=ast.Name(id=condition), body=ast.Name(id=then), orelse=ast.Name(id=orelse)),
                ) if name in (then, orelse):
                    return {condition: name == then}
                case _:
                    pass
        return {}

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
        parameters = [a.arg for a in list_parameters(function)]
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
        return self.before.get(id(node), known)

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
            has_default = set(self.find_defaults(function, known))
            calls = ((script, call) for script in (self, *self.beside) for call in script.calls(function.name))
            for script, call in itertools.islice(calls, 8):
                if script.around.get(id(call)) is not function:
                    is_first = not given
                    for parameter, value in script.given(call, function).items():
                        if given.get(parameter) is None and (is_first or parameter not in has_default):
                            given[parameter] = value
            known |= self.find_defaults(function, known) | self._parametrized(function) | given
            known |= {a.arg: self.assumed[a.arg] for a in list_parameters(function) if a.arg in self.assumed}
            body = function.body
            for parameter in list_parameters(function):
                if known.get(parameter.arg) is None and parameter.arg in self.options:
                    known[parameter.arg] = self.options[parameter.arg]
        self.run_statements(body, known)
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


def read_script(path: Path, read: dict[Path, Script] | None = None) -> Script:
    """Return the script of a file, with those of its repository that it imports functions from. `read` has the scripts
    by their paths, and gets the new ones: files may import one another.
    """
    read = {} if read is None else read
    if path in read:
        return read[path]
    script = read[path] = Script(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        place = node.module.replace(".", "/") + ".py"
        other = next((found for folder in path.parents if (found := folder / place).is_file()), None)
        if other is not None:
            of = read_script(other, read)
            for each in node.names:
                if each.name in of.functions:
                    script.imported[each.name] = of
                elif each.name in of.imported:
                    script.imported[each.name] = of.imported[each.name]
    return script


def _called_names(tree: ast.AST) -> set[str]:
    """Return the names of the functions that a part of a script calls."""
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _sizes(
    function: ast.FunctionDef, parameter: str, tensor: Tensor, found: dict[str, Any]
) -> Iterator[tuple[str, int]]:
    """The names that the type of a parameter has for the extents of the tensor that it is given. A type that depends on
    another parameter is the one for the value `found` for it.
    """
    types = [a.annotation for a in list_parameters(function) if a.arg == parameter and a.annotation is not None]
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
        if isinstance(shape, ast.IfExp) and isinstance(shape.test, ast.Name) and shape.test.id in found:
            shape = shape.body if found[shape.test.id] else shape.orelse
        listed = shape.elts if isinstance(shape, ast.Tuple | ast.List) else []
        for dimension, extent in zip(listed, tensor.shape, strict=False):
            if isinstance(dimension, ast.Name) and isinstance(extent, int):
                yield dimension.id, extent
