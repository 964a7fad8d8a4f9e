"""What a repository of TileLang kernels says itself of a kernel that no compiler for this machine has to accept.

The kernel's tests may ask for another machine, or expect an error; its text may have no launch, paste C++, or be
written for another library. Each is a rule about the text: no kernel is named here.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

_ASKS = re.compile(r"requires_cuda_compute_version(?:_ge|_eq)?\((\d+)(?:, *(\d+))?\)")
_OTHER_MACHINES = re.compile(r"requires_(rocm|metal\w*|llvm|gfx\w+|cdna|rdna)\b")
_PASTED_CODE = re.compile(r"import_source|call_extern|c_source|CUDASourceCodeKernel|extern \"C\"")
_OF_THE_MACHINE = ("shared-memory-overflow", "fragment-overflow", "foreign-format", "needs-sm-100a")
"""Codes of mistakes that say that this machine cannot do it."""
_LACKS = re.compile(r"\b(only sm_\w+ has|sm_\w+ has no)\b")
_TCGEN05_FORM = re.compile(r"T\.tcgen05_gemm: (C must be a tile of T\.alloc_tmem|missing .*`mbar`)")
"""What T.tcgen05_gemm asks of its arguments in TileLang too: the sum in tensor memory, and `mbar` said."""


def find_least_capability(tree: ast.Module, name: str) -> int:
    """Return the least compute capability, times ten, that all tests of a kernel ask for: 0 if one asks for none."""
    asked = []
    for test in _find_tests(tree, name):
        said = [ast.unparse(decorator) for decorator in test.decorator_list]
        found = [_ASKS.search(each) for each in said]
        asked.append(max((10 * int(each[1]) + int(each[2] or 0) for each in found if each), default=0))
    return min(asked, default=0)


def is_for_another_machine(tree: ast.Module, name: str) -> bool:
    """Return whether all tests of a kernel ask for a machine of another vendor."""
    tests = list(_find_tests(tree, name))
    return bool(tests) and all(
        any(_OTHER_MACHINES.search(ast.unparse(decorator)) for decorator in test.decorator_list) for test in tests
    )


def explain_refusal(text: str, name: str, code: str, title: str) -> str:
    """Return a few words on why a file itself shows that refusing its kernel is right, or "" if it does not. `code` and
    `title` are those of the mistake that the kernel was refused with.
    """
    tree = ast.parse(text)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    own = ast.get_source_segment(text, function) or ""
    if not any(module.split(".")[0] == "tilelang" for module in _list_imports(tree)):
        return "written for another library"
    if any(module.startswith("tvm.script") for module in _list_imports(function)):
        return "written in TVM's own language"
    if code == "missing-kernel" and not re.search(r"\bKernel\(|launch_thread|thread_binding", own):
        return "no launch in it"
    if _PASTED_CODE.search(own) and code.startswith("foreign"):
        return "pastes C++"
    if code == "unknown-name" and (found := re.search(r"`(\w+)`", title)) and not _is_bound(tree, found[1]):
        return "a name that nothing defines"
    if code in _OF_THE_MACHINE or _LACKS.search(title):
        return "beyond this machine"
    if _TCGEN05_FORM.search(title) and not re.search(r"tcgen05_gemm\([^)]*mbar", own):
        return "for an earlier TileLang"
    return "a mistake on purpose" if _is_refused_on_purpose(tree, name) else ""


def _list_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of each module that a file or a function imports, or imports names from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _is_bound(tree: ast.Module, name: str) -> bool:
    """Return whether anything in a file binds a name, or it is one of Python's own."""
    if hasattr(builtins, name):
        return True
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=found, ctx=ast.Store()) | ast.arg(arg=found) if found == name:
                return True
            case ast.FunctionDef(name=found) | ast.ClassDef(name=found) if found == name:
                return True
            case ast.alias(name=found, asname=alias) if (alias or found.split(".")[0]) == name:
                return True
            case _:
                pass
    return False


def _find_tests(tree: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    """Yield the `test…` functions of a file that name a function, or name another function that reaches it."""
    reaching = _find_callers(tree, name)
    yield from (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test") and n in reaching)


def _find_callers(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """Return the top-level functions of a file that name a function, or one of these, found step by step."""
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    reached, found = {name}, list[ast.FunctionDef]()
    while more := [f for f in functions if f not in found and f.name != name and reached & _list_names(f)]:
        found += more
        reached |= {each.name for each in more}
    return found


def _list_names(tree: ast.AST) -> set[str]:
    """Return the plain names that are in a part of a file."""
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _is_refused_on_purpose(tree: ast.Module, name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a function is used, and each use of it, or of what uses it, is where an exception is expected."""
    seen |= {name}
    users = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name not in seen and name in _list_names(f)]
    return bool(users) and all(
        _expects_exception(user, {name})
        or (not user.name.startswith("test") and _is_refused_on_purpose(tree, user.name, seen))
        for user in users
    )


def _expects_exception(test: ast.FunctionDef, reaching: set[str]) -> bool:
    """Return whether a function uses one of these names under `pytest.raises`, or to make what is called there."""
    expecting = [
        node
        for node in ast.walk(test)
        if isinstance(node, ast.With) and any("raises" in ast.unparse(item.context_expr) for item in node.items)
    ]
    if not expecting:
        return False
    inside = set[str]().union(*map(_list_names, expecting))
    made_of = {
        target.id: _list_names(node.value)
        for node in ast.walk(test)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return bool(reaching & (inside | set[str]().union(*(made_of.get(each, set()) for each in inside))))
