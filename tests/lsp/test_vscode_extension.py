"""editors/vscode: the extension is whole, and what it says of tilec is so. Nothing of npm is needed for that."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tilec import __version__
from tilec.cli.names import COMMANDS
from tilec.frontend.sema.vocabulary import list_supported_names
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops.language.unavailable_names import REFUSED

EDITORS = Path(__file__).parents[2] / "editors"
FOLDER = EDITORS / "vscode"
SAMPLES = EDITORS.parent / "samples"


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("editors_generate", EDITORS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patterns() -> Iterator[tuple[re.Pattern[str], dict[str, Any]]]:
    for injected in read("syntaxes/tilec.tmLanguage.json")["injections"].values():
        for rule in injected["patterns"]:
            yield re.compile(rule["match"]), rule


def scope(text: str) -> str | None:
    """That of a name of the language, or of a dtype, alone in a text."""
    for pattern, rule in patterns():
        if found := pattern.search(text):
            whole = text if "captures" in rule else text[1:-1]
            assert found[0] == whole
            return str(rule["captures"]["2"]["name"] if "captures" in rule else rule["name"])
    return None


def test_the_grammar_is_up_to_date() -> None:
    current = (FOLDER / "syntaxes" / "tilec.tmLanguage.json").read_text(encoding="utf-8")
    assert current == generator().text(), "run `python editors/generate.py`"


def test_every_name_has_one_colour() -> None:
    names = [name for name in list_supported_names() if name.startswith("T.")]
    assert [name for name in names if scope(name) is None] == []
    assert {scope(f"T.{name}") for name in REFUSED} == {"invalid.deprecated.refused.tilec"}
    assert {scope(f"T.{name}") for name in TYPES_BY_NAME} == {"support.type.dtype.tilec"}
    assert {scope(f'"{name}"') for name in TYPES_BY_NAME} == {"support.type.dtype.tilec"}
    assert scope("T.Pipelined") == "keyword.control.loop.tilec"
    assert scope("T.alloc_shared") == "storage.type.allocation.tilec"
    assert scope("T.gemm") == scope("T.exp") == "support.function.operation.tilec"
    assert scope("T.Kernel") == "storage.modifier.structure.tilec"
    assert scope("T.copying") is scope("x.T.copy") is scope("AT.copy") is scope('"floats"') is None
    per_name = [name for names in generator().groups().values() for name in names]
    assert len(per_name) == len(set(per_name))


def test_the_samples_have_colours() -> None:
    for path in SAMPLES.rglob("*.tl"):
        text = path.read_text(encoding="utf-8")
        used = set(re.findall(r"(?<![\w.])T\.\w+", text))
        assert used and [name for name in used if scope(name) is None] == [], path


def test_the_regular_expressions_mean_the_same_in_oniguruma() -> None:
    """No groups with names, no flags, no conditions, no lookbehind of varying width: `re` refuses the last."""
    for pattern, _ in patterns():
        assert set(re.findall(r"\(\?<?.", pattern.pattern)) <= {"(?<!", "(?<=", "(?!", "(?="}
        assert not re.search(r"\\[^\w.\\\"'s-]|\\[AZzbBk]", pattern.pattern)
    rules = read("language-configuration.json")["onEnterRules"]
    header = re.compile(rules[0]["beforeText"])
    assert header.match("    for i in T.Parallel(4):") and not header.match("    x = T.if_then_else(a, b, c)")


def test_the_manifest_names_what_is_there() -> None:
    manifest = read("package.json")
    contributed = manifest["contributes"]
    (language,), (grammar,) = contributed["languages"], contributed["grammars"]
    for file in (manifest["main"], language["configuration"], grammar["path"]):
        assert (FOLDER / file).is_file()
    assert grammar["language"] == language["id"] == "tilec" and language["extensions"] == [".tl"]
    assert read("syntaxes/tilec.tmLanguage.json")["scopeName"] == grammar["scopeName"]
    assert manifest["activationEvents"] == [f"onLanguage:{language['id']}"]
    assert manifest["version"] == __version__
    assert f"tilec-{manifest['version']}.vsix" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_extension_reads_what_the_manifest_declares_and_starts_what_there_is() -> None:
    code = (FOLDER / "extension.js").read_text(encoding="utf-8")
    contributed = read("package.json")["contributes"]
    assert {f"tilec.{name}" for name in re.findall(r'settings\.get\("(\w+)"\)', code)} == set(
        contributed["configuration"]["properties"]
    )
    assert re.findall(r'registerCommand\("([\w.]+)"', code) == [c["command"] for c in contributed["commands"]]
    assert set(re.findall(r'require\("([\w-]+)', code)) - {"vscode"} == set(read("package.json")["dependencies"])
    (started,) = re.findall(r'args: \["(\w+)"', code)
    assert started in COMMANDS
    assert contributed["configuration"]["properties"]["tilec.path"]["default"] == "tilec"
    documented = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in documented for name in contributed["configuration"]["properties"])
    if node := shutil.which("node"):
        subprocess.run([node, "--check", str(FOLDER / "extension.js")], check=True)


def test_every_editor_of_the_document_starts_the_server() -> None:
    text = (EDITORS.parent / "docs" / "editors.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(lua|toml|lisp)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    helix = tomllib.loads(blocks["toml"])
    (language,) = helix["language"]
    (server,) = (helix["language-server"][name] for name in language["language-servers"])
    assert (server["command"], *server["args"]) == ("tilec", "lsp") and "lsp" in COMMANDS
    assert language["file-types"] == ["tl"]
    assert '"tilec", "lsp"' in blocks["lua"] and '"tilec" "lsp"' in blocks["lisp"]
