"""The smallest kernel that is found for the same reason: statements are left out, loops and branches become their
bodies, and options become the usual ones, as long as the verdict has the same name."""

from __future__ import annotations

import ast
import json

from judging import Case, judged
from smaller import smallest

HEAD = "import tilelang\nimport tilelang.language as T\n"


def minimised(text: str, name: str, most: int = 250) -> str:
    """After at most so many trials."""
    head, _, body = text.partition("\n")
    settings = json.loads(head.removeprefix("#"))

    def is_found(tried: str) -> bool:
        try:
            return judged(Case(tried)).name == name
        except Exception:  # what is left is no kernel
            return False

    def whole(source: str) -> str:
        return f"# {json.dumps(settings)}\n{HEAD}{source}"

    for option in list(settings["options"]):
        if option != "target":
            value = settings["options"].pop(option)
            if not is_found(whole(ast.unparse(_tree(body)))):
                settings["options"][option] = value
    return whole(smallest(ast.unparse(_tree(body)), lambda source: is_found(whole(source)), most))


def _tree(source: str) -> ast.Module:
    tree = ast.parse(source)
    tree.body = [s for s in tree.body if not isinstance(s, ast.Import)]
    return tree
