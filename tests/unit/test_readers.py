"""What others wrote as JSON, TOML or Python is a value or a `ValueError`, whatever it is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from tilec.ir import manifest
from tilec.ir.read import read_kernel
from tilec.ptx.parse import PtxSyntaxError, parse_module
from tilec.sched.trace import TraceError, read_schedules
from tilec.support.diagnostics import CompileError
from tilec.support.options import parse_define
from tilec.support.readers import DEEPEST, parse_json, parse_python_expression, parse_toml
from tilec.target import table as target
from tilec.tune import tuned


def nested(before: str, inner: str, behind: str, times: int) -> str:
    return before * times + inner + behind * times


@pytest.mark.parametrize("times", [DEEPEST + 2, 100_000])
@pytest.mark.parametrize(
    ("read", "before", "inner", "behind"),
    [
        (parse_json, "[", "", "]"),
        (parse_json, '{"a":', "1", "}"),
        (parse_toml, "a = [", "", "]"),
        (parse_toml, "a", "a = 1", ".a"),
        (parse_python_expression, "(0, ", "0", ")"),
        (parse_python_expression, "-", "1", ""),
        (parse_python_expression, "", "1", " + 1"),
        (parse_python_expression, "", "f", "()"),
    ],
)
def test_depth_is_refused_by_name(read: Callable[[str], Any], before: str, inner: str, behind: str, times: int) -> None:
    text = nested(before, inner, behind, times) if before != "a" else f"{'a.' * times}a = 1"
    text = text.replace("a = [" * times, "a = " + "[" * times)
    with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep|expression"):
        read(text)


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "[1", "9" * 5000, '"\x01"', "", "\0", r'"\ud800"', r'{"\udC00\ud801": 1}']
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_characters_in_two_halves() -> None:
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["\U0001f600", r"\ud800"]


def test_a_tree_is_not_evaluated(capfd: pytest.CaptureFixture[str]) -> None:
    assert isinstance(parse_python_expression("print('executed')"), ast.Call)
    parse_python_expression("1or 2")  # about which Python itself warns
    assert capfd.readouterr() == ("", "")


# ---- who uses it -----------------------------------------------------------------------------------------------------

DEEP = "[" * 5000 + "]" * 5000


def test_a_trace() -> None:
    with pytest.raises(TraceError, match="nested more than"):
        read_schedules(DEEP)


def test_a_tuned_file() -> None:
    with pytest.raises(CompileError, match="bad-tuned-file"):
        tuned.read_tuned(DEEP, "k.tuned.json")


def test_a_target_file() -> None:
    for text in (f"a = {DEEP}", f"a = {'9' * 5000}", "a = 1e999"):
        with pytest.raises(CompileError, match="bad-target-file"):
            target.parse_target(text, "t.toml")


def test_a_constant_on_the_command_line() -> None:
    for value in (DEEP, "{{1}}", "9" * 5000, "\0", "-" * 5000 + "1"):
        assert parse_define(f"N={value}") == ("N", value), "no number: a string"


def test_tile_ir() -> None:
    blocks = "".join(f"{'  ' * n}for i{n} in serial(0, 2):\n" for n in range(1, 200))
    for text in (f"kernel k():\n  x = {DEEP}\n", f"kernel k(){DEEP}:", f"kernel k():\n{blocks}"):
        with pytest.raises(CompileError, match="bad-tile-ir"):
            read_kernel(text)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (".reg .b32 %r<4000000000>;", "registers of one name"),
        (".reg .b32 %r<" + "9" * 5000 + ">;", "cannot be read"),
        (".shared .align 0 .b8 s[4];", "is not an alignment"),
        (".shared .align 3 .b8 s[4];", "is not an alignment"),
        (".local .b8 s[99999999999];", "takes more than"),
        ("add.s32 %r1, %r1, 08;", "cannot be read"),
        ("{" * 200 + "}" * 200, "blocks are nested more than"),
    ],
)
def test_ptx(body: str, said: str) -> None:
    with pytest.raises(PtxSyntaxError, match=said):
        parse_module(f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n{body}\nret;\n}}\n")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("entry", '""'), ("entry", '"a\\nb"'), ("entry", "null"), ("entry", '"\\ud800"'), ("entry", '"\\u001b[31m"'),
        ("block", "[0,1,1]"), ("block", "[1e999,1,1]"), ("block", "[true,1,1]"), ("cluster", "[1,1]"),
        ("cluster", f"[1,1,{1 << 40}]"), ("dynamic_smem", "-1"), ("dynamic_smem", "0.5"), ("dynamic_smem", DEEP),
        ("grid", '[["floordiv",1],1,1]'), ("params", '[{"kind":"pointer","tensor":"A"}]'), ("outputs", '["A"]'),
        ("scalars", '[{"name":"n","dtype":"float7"}]'), ("scalars", '[{"name":"n","dtype":["int32"]}]'), ("tensors",
        "7"),
    ],
)  # fmt: skip
def test_a_manifest(member: str, value: str) -> None:
    good = {
        "schema": "1", "entry": '"k"', "target": '"sm_80"', "grid": "[1,1,1]", "block": "[32,1,1]",
        "cluster": "[1,1,1]",
        "dynamic_smem": "0", "tensors": "[]", "scalars": "[]", "params": "[]", "outputs": "[]",
    }  # fmt: skip

    def text(members: dict[str, str]) -> str:
        return "{" + ",".join(f'"{name}":{said}' for name, said in members.items()) + "}"

    assert manifest.from_json(text(good)).entry == "k"
    with pytest.raises(CompileError, match="bad-manifest"):
        manifest.from_json(text({**good, member: value}))
