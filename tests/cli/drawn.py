"""The page of a schedule or a report: the JSON in it, and what its script draws of that.

The script is run by Node, if there is one, in a document of the tests' own; a browser is what `chromium` is for.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

NODE = shutil.which("node") or shutil.which("nodejs")

_DATA = re.compile(r'<script type="application/json" id="(\w+)">([^<]*)</script>')
_SCRIPT = re.compile(r"<script>([^<]*(?:<(?!/script)[^<]*)*)</script>")


def texts(page: str) -> dict[str, str]:
    """The text of each block of JSON, by its id."""
    return dict(_DATA.findall(page))


def traces(page: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(texts(page)["traces"])
    return found


def report(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(page)["report"])
    return found


def value(page: str, expression: str) -> Any:
    """What an expression of JavaScript is when the page has been drawn."""
    if NODE is None:
        pytest.skip("no Node on the path to draw the page with")
    (script,) = _SCRIPT.findall(page)
    command = [NODE, str(Path(__file__).with_name("document.js"))]
    given = json.dumps([texts(page), script, expression])
    done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tree(page: str) -> ElementTree.Element:
    """The body, drawn."""
    return _element(value(page, "tree(document.body)"))


def _element(of: list[Any]) -> ElementTree.Element:
    name, attributes, parts = of
    made, last = ElementTree.Element(name, attributes), None
    for part in parts:
        if not isinstance(part, str):
            last = _element(part)
            made.append(last)
        elif last is None:
            made.text = (made.text or "") + part
        else:
            last.tail = (last.tail or "") + part
    return made


def text(node: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()).split())


def under(root: ElementTree.Element, heading: str, kind: str) -> ElementTree.Element:
    """The first element of a kind below a heading."""
    nodes = iter(root.iter())
    next(node for node in nodes if node.tag in ("h2", "h3") and text(node) == heading)
    return next(node for node in nodes if node.tag == kind)


def rows(node: ElementTree.Element) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in node.iter("tr")]


def listing(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(node for node in root.iter("pre") if node.get("aria-label") == name)
