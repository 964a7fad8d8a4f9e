"""What the documents say, where a machine can tell whether it is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilec.cli.main import main
from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.emu.fault import Fault
from tilec.ir.manifest import to_json
from tilec.sched import trace
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ROOT = Path(__file__).parents[2]
GEMM = str(ROOT / "samples" / "gemm.tl")


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = blocks("README.md", "sh")[:2]
    assert text.index(commands[1]) < text.index("\n## "), "both stand before the first heading"
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in commands:
        assert command.count("\n") == 1
        assert f"\n{command.rstrip()}" in script, "CI may run more tests, by what follows"


def test_the_kernel_of_the_readme_compiles() -> None:
    (text,) = blocks("README.md", "python")
    plan = driver.plan_kernel(SourceFile("gemm.tl", text), CompileOptions(), driver.Observer())
    assert [p.solution.schedule.status for p in plan.loops] == ["optimal"]


def test_the_worked_reading_is_what_the_sample_gives(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    assert main(["schedule", GEMM]) == 0
    shown = capfd.readouterr().out.splitlines()
    # The one before the last: tests/cli/test_diff.py.
    *read, assembled, _, refusal = blocks("docs/trace.md", "text")
    for line in "".join(read).splitlines():
        assert any(line == s or s.startswith(f"{line} ") for s in shown), line
    assert "bad-schedule" in refusal
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["report", GEMM]) == 0
    reported = capfd.readouterr().out
    assert assembled.strip("…\n") in reported


def test_the_decisions_shown_are_those_of_the_sample(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["schedule", GEMM, "-D", "M=4096", "-D", "N=4096", "-D", "K=4096"]) == 0
    (shown,) = blocks("docs/blocks.md", "text")
    assert capfd.readouterr().out.startswith(shown)


def test_the_manifest_shown_is_that_of_the_sample(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cubin = str(tmp_path / "gemm.cubin")
    assert main([GEMM, "-o", cubin]) == 0
    assert main(["inspect", cubin]) == 0
    assert capfd.readouterr().out == blocks("docs/manifest.md", "text")[0]


def test_every_key_of_the_manifest_is_documented() -> None:
    source = SourceFile("gemm.tl", Path(GEMM).read_text(encoding="utf-8"))
    build = driver.build_kernel(source, CompileOptions(), driver.Observer())
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    assert [key for key in json.loads(to_json(build.manifest)) if f"`{key}`" not in text] == []


def test_every_key_of_the_trace_is_documented_and_every_documented_key_exists() -> None:
    """Key by key, each in the row of the member that it is in; and the schema's keys are what is really written."""
    text = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    member = text.split("## The `tilec` member")[1].split("\n## ")[0]
    schema = json.loads((ROOT / "tilec" / "sched" / "trace.schema.json").read_text(encoding="utf-8"))
    record = schema["properties"]["tilec"]["properties"]
    introduction = member.split("| key |")[0]
    assert set(record) <= set(re.findall(r"`(\w+)`", introduction))
    assert f"`schema` is {trace.SCHEMA}" in introduction
    loop = record["loops"]["items"]["properties"]
    rows = {
        key: set(re.findall(r"`([a-z_]+)`", told))
        for keys, told in re.findall(r"^\| (`.*?`) \| (.*) \|$", member, re.MULTILINE)
        for key in re.findall(r"`(\w+)`", keys)
    }
    assert set(rows) == set(loop)
    for key, told in rows.items():
        inner = _keys(loop[key])
        values = set(loop["status"]["enum"]) | {"ii", "mii"}  # told in the row of what they are values of
        assert inner <= told and told <= inner | values, (key, inner ^ told)


def _keys(schema: dict[str, Any]) -> set[str]:
    """Every key of what is inside a member."""
    found = set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), *schema.get("oneOf", ()), schema.get("items")]
    return found.union(*(_keys(part) for part in inner if part))


# ---- docs/loops.md ---------------------------------------------------------------------------------------------------

LOOPS_KERNEL, *LOOPS = blocks("docs/loops.md", "python")


def in_the_kernel(block: str) -> str:
    """The kernel of the document with these loops in place of its own."""
    before, loop, after = re.split(r"(^ *for .*\n(?:.*\n)*?)(?= *T\.copy\(C_local)", LOOPS_KERNEL, flags=re.MULTILINE)
    indent = loop[: len(loop) - len(loop.lstrip())]
    return before + "".join(f"{indent}{line}\n" for line in block.splitlines()) + after


@pytest.mark.some(6)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("number", range(len(LOOPS)))
def test_the_loops_of_the_document_do_what_it_says(number: int, target: str) -> None:
    """Each compiles, or is refused or warned of as its comment says, and computes what the serial loop does."""
    expected = re.findall(r"# (error|warning): \[([a-z-]+)\]", LOOPS[number])
    source, observer = SourceFile("loops.tl", in_the_kernel(LOOPS[number])), driver.Observer()
    try:
        made = driver.build_kernel(source, CompileOptions(target=target), observer)
    except CompileError as refused:
        assert [(d.severity, d.code) for d in refused.diagnostics] == expected
        return
    # What warps wait for is another matter: these loops show how to write one. And none needs every parameter.
    others = {"assembled-interval", "unused-parameter"}
    assert [(w.severity, w.code) for w in made.warnings if w.code not in others] == expected
    for n in (0, 1, 3, 8):
        found = emulate.draw_arguments(made.kernel, made.manifest, n)
        found.scalars["n"] = n
        reference = found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(made.kernel, reference)
        assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, reference))


def test_the_expansion_shown_is_that_of_the_kernel() -> None:
    (shown,) = blocks("docs/loops.md", "text")
    text = LOOPS_KERNEL.replace("num_stages=3", "stage=[0, 0, 1], order=[0, 1, 2]")
    observer = driver.Observer(keep={"expand"}, stop_after="expand")
    with pytest.raises(driver.PipelineStopped):
        driver.build_kernel(SourceFile("loops.tl", text), CompileOptions(target="sm_80"), observer)
    lines = iter(observer.texts["expand"].decode().splitlines())
    assert [line for line in shown.splitlines() if line not in lines] == []  # in this order


def test_every_fault_is_documented() -> None:
    text = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    kinds = re.findall(r'"([a-z-]+)"', Fault.__doc__ or "")
    assert len(kinds) > 10
    assert [kind for kind in kinds if f"`{kind}`" not in text] == []
    raised = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tilec" / "emu").rglob("*.py"))
    assert set(re.findall(r'Fault\(\s*"([a-z-]+)"', raised)) <= set(kinds)


# ---- docs/pipelines.md -----------------------------------------------------------------------------------------------

PIPELINES_KERNEL, *PIPELINES = blocks("docs/pipelines.md", "python")


def with_role(block: str) -> str:
    """The kernel of the document with this role in place of its own of that number."""
    head = re.match(r"with T\.ws\(\d\):", block)
    assert head is not None
    role = "".join(f"        {line}\n" for line in block.splitlines())
    own = re.compile(rf" *{re.escape(head[0])}\n(?: {{12}}.*\n)*")
    text, count = own.subn(lambda _: role, PIPELINES_KERNEL)
    assert count == 1
    return text


def test_the_pipelines_listed_are_those_of_the_kernel(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipelines.tl"
    path.write_text(PIPELINES_KERNEL, encoding="utf-8")
    assert main(["schedule", str(path)]) == 0
    (listed,) = blocks("docs/pipelines.md", "text")
    shown = capfd.readouterr().out
    assert listed in shown
    first, *rest = shown.split("warpgroup_0, warps 0 to 3: ")[1].splitlines()
    assert first == "statements, as they run"
    assert [line.split(None, 1)[1] for line in rest[1:6]] == [
        "for by_1", "fill C_local", "for k_1", "acquire inputs", "gemm A_shared, B_shared, C_local",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(-1, len(PIPELINES)))
def test_the_pipelines_of_the_document_do_what_it_says(number: int) -> None:
    """Each role compiles in the kernel, or is refused as its comments say, and computes the product."""
    block = "" if number < 0 else PIPELINES[number]
    expected = re.findall(r"# error: \[([a-z-]+)\]", block)
    source, observer = SourceFile("pipelines.tl", with_role(block) if block else PIPELINES_KERNEL), driver.Observer()
    try:
        made = driver.build_kernel(source, CompileOptions(), observer)
    except CompileError as error:
        assert [d.code for d in error.diagnostics] == expected
        return
    assert expected == [] == observer.warnings
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    reference = found.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(made.kernel, reference)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, reference))
