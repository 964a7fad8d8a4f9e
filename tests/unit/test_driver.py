"""The observer's order of things, and the assembler's remarks as warnings that name a line of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.driver.build import Observer, PipelineStopped
from tilec.driver.lints.assembler import assembled
from tilec.driver.pipeline import PIPELINE, Pass, require_explicit_roles
from tilec.ptx.assemble import Remark
from tilec.support import files
from tilec.support.diagnostics import InternalError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile, Span

SAMPLES = Path(__file__).parents[2] / "samples"


def _broken(_: object) -> Iterator[str]:
    yield "first promise"
    yield "second promise"


def test_a_value_that_does_not_verify_leaves_its_dump(tmp_path: Path) -> None:
    observer = Observer(dump_dir=str(tmp_path))
    with pytest.raises(InternalError, match="what fold makes does not verify:\n  first promise\n  second promise"):
        observer.observe_pass(2, "fold", "tile", ".tile", lambda: "value", _broken(0))
    assert (tmp_path / "02-fold.tile").read_text() == "value"


def test_texts_are_made_only_where_they_are_wanted() -> None:
    def never() -> str:
        raise AssertionError("not wanted")

    observer = Observer(keep={"ptx"})
    observer.observe_pass(1, "fold", "tile", ".tile", never)
    observer.observe_pass(2, "print", "ptx", ".ptx", lambda: "4")
    assert observer.texts == {"ptx": b"4"}


def test_a_pass_that_changes_nothing_says_so(tmp_path: Path) -> None:
    observer = Observer(dump_dir=str(tmp_path))
    for number, text in enumerate(("a", "a", "b"), 1):
        observer.observe_pass(number, "pass", None, ".tile", partial(str, text))
    assert [(tmp_path / f"0{n}-pass.tile").read_text() for n in (1, 2, 3)] == ["a", "unchanged\n", "b"]


@pytest.mark.parametrize("stop_after", ["tile", "fold"])
def test_stops_after_what_was_made_has_been_verified(stop_after: str) -> None:
    observer = Observer(stop_after=stop_after)
    observer.observe_pass(1, "parse", "ast", ".ast", str)
    with pytest.raises(InternalError):
        observer.observe_pass(2, "fold", "tile", ".tile", str, _broken(1))
    with pytest.raises(PipelineStopped):
        observer.observe_pass(2, "fold", "tile", ".tile", str)
    assert [name for name, _ in observer.seconds] == ["parse", "fold"]


def test_a_build_runs_every_pass_that_is_on_in_the_order_of_the_table() -> None:
    source = files.read_source(str(SAMPLES / "vector_add.tl"))
    observer = Observer()
    build = driver.build_kernel(source, CompileOptions(), observer)
    off = {"remove-cluster", "set-consumer-warpgroups", "mark-fast-math", "analyse-aliases"}
    off |= {row.name for row in PIPELINE if isinstance(row, Pass) and row.of is require_explicit_roles}
    assert [name for name, _ in observer.seconds] == [row.name for row in PIPELINE if row.name not in off]
    assert build.cubin.startswith(b"\x7fELF")
    assert build.manifest.entry == build.kernel.name == "vector_add"
    assert [e.name for e in build.entries] == ["vector_add"]
    assert build.warnings == ()


def test_where_the_file_lies_does_not_matter(tmp_path: Path) -> None:
    text = (SAMPLES / "vector_add.tl").read_text()
    built = [
        driver.build_kernel(SourceFile(f"{folder}/vector_add.tl", text), CompileOptions(), Observer())
        for folder in ("a", "/b/c")
    ]
    assert built[0].ptx == built[1].ptx
    assert built[0].cubin == built[1].cubin


# ---- remarks ---------------------------------------------------------------------------------------------------------

KERNEL = SourceFile("k.tl", "first\n    second\nthird")
PTX = """\
.version 8.0
.visible .entry k()
{
    mov.u32 %r0, 0;
    .loc 1 2 5
    add.u32 %r0, %r0, 1;
    .loc 1 3 0
    ret;
}"""


def _line(text: str) -> int:
    return 1 + PTX.split("\n").index(f"    {text}")


def test_a_ptx_line_leads_to_its_source_line() -> None:
    remark = Remark("inserted-wait", "C7517", "a wait is injected", "k", _line("add.u32 %r0, %r0, 1;"))
    (warning,) = assembled.group_remarks([remark], PTX, KERNEL, Span(1, 1, 1, 6))
    assert (warning.code, warning.severity) == ("inserted-wait", "warning")
    assert warning.primary is not None
    assert warning.primary.span == Span(2, 5, 2, 11)
    assert warning.notes == ("C7517: a wait is injected", "PTX line 6: add.u32 %r0, %r0, 1;")


def test_a_remark_without_a_line_is_about_the_kernel() -> None:
    remark = Remark("register-spill", "spill", "8 bytes", "k")
    (warning,) = assembled.group_remarks([remark], PTX, KERNEL, Span(3, 1, 3, 6))
    assert warning.primary is not None
    assert warning.primary.span == Span(3, 1, 3, 6)
    assert warning.notes == ("8 bytes",)


def test_code_before_the_first_loc_is_about_the_kernel() -> None:
    remark = Remark("inserted-wait", "C7519", "an arrive is injected", "k", _line("mov.u32 %r0, 0;"))
    (warning,) = assembled.group_remarks([remark], PTX, KERNEL, Span(1, 1, 1, 6))
    assert warning.primary is not None
    assert warning.primary.span.line == 1


def test_remarks_of_one_kind_on_one_line_are_one_warning() -> None:
    line = _line("add.u32 %r0, %r0, 1;")
    many = [Remark("inserted-wait", "C7519", f"number {i}", "k", line) for i in range(5)]
    (warning,) = assembled.group_remarks(many, PTX, KERNEL, Span(1, 1, 1, 6))
    assert warning.notes[-1] == "and 2 more like this"
