"""What `inspect.signature` and `help` say of the public classes: how each is made."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import pydoc
from collections.abc import Iterator
from types import ModuleType

import pytest

import tilec.driver
import tilec.host
import tilec.ir
import tilec.sched
from tilec.support.options import CompileOptions

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _public() -> Iterator[type]:
    for package in (tilec.host, tilec.ir, tilec.sched, tilec.driver):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, found in vars(importlib.import_module(module.name)).items():
                own = inspect.isclass(found) and found.__module__ == module.name
                if own and not name.startswith("_") and not issubclass(found, Exception):
                    yield found


def test_signatures_of_public_classes() -> None:
    for cls in [*_public(), CompileOptions]:
        check_signature(cls)


def check_signature(cls: type) -> None:
    parameters = inspect.signature(cls).parameters.values()
    assert [str(p) for p in parameters if p.kind in _VARIABLE] == []
    if dataclasses.is_dataclass(cls):
        ordered = sorted((f for f in dataclasses.fields(cls) if f.init), key=lambda f: bool(f.kw_only))
        assert [(p.name, p.annotation) for p in parameters] == [(f.name, f.type) for f in ordered]


@pytest.mark.parametrize("package", [tilec.host, tilec.ir, tilec.sched], ids=lambda package: package.__name__)
def test_what_is_public_says_what_it_is(package: ModuleType) -> None:
    silent = []
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, found in vars(importlib.import_module(module.name)).items():
            is_own = getattr(found, "__module__", None) == module.name and (inspect.isclass(found) or callable(found))
            if is_own and not name.startswith("_") and not found.__doc__:
                silent.append(f"{module.name}.{name}")
    assert silent == []


def test_options_are_documented_beside_the_field() -> None:
    """In the source, where `help` does not look: a string stands under each field."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(CompileOptions) or CompileOptions))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "CompileOptions")
    alone = [
        ast.unparse(field.target)
        for field, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert alone == []


def test_help_shows_the_parameters() -> None:
    from tilec.ir.warp_nodes.memory import TensorMap

    text = pydoc.plain(pydoc.render_doc(TensorMap))
    shown = inspect.signature(TensorMap)
    assert all(f"{f.name}:" in text for f in dataclasses.fields(TensorMap))
    assert len(shown.parameters) == len(dataclasses.fields(TensorMap)) and "*args" not in text
