"""`tilec simulate`: what it says of a kernel, of PTX, of a mistake; its timeline and its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec

from tilec.target.table import load_target


def test_simulate_says_how_long_and_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("simulate", GEMM, "-D", "M=256", "-D", "N=256", "-D", "K=512", "--timeline", "t.json") == 0
    said = capfd.readouterr().out
    assert "4 blocks on 4 of 132 multiprocessors" in said
    assert "tensor cores" in said
    assert "mbarrier: copy of line" in said
    assert " µs predicted; " in said.splitlines()[0]
    assert re.search(r"^an iteration: [\d,]+ cycles solved, [\d,]+ reached", said, re.MULTILINE)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"tensor", "copies", "warp 0", "warp 8"} <= tracks
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] < 1000:
            track = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(track, 0.0) - 0.02
            ends[track] = event["ts"] + event["dur"]


class Page(HTMLParser):
    """The headings of a page and the rows of its tables; what it would load or run is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attrs} & {"href", "src", "onclick"}
        if tag == "tr":
            self.rows.append([])
        if tag not in ("meta", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1].append(data)


def test_simulate_writes_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("simulate", GEMM, "-D", "M=256", "-D", "N=256", "-D", "K=512", "--html", "p.html") == 0
    page = Page()
    page.feed((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert not page.open
    assert page.headings[:2] == ["The replay", "Intervals"]
    told = [line.split() for line in capfd.readouterr().out.splitlines()]
    shares = {row[0]: row[1] for row in page.rows if len(row) == 2}
    assert [shares["tensor cores"], "tensor", "cores"] in told
    assert {"warps 0-7", "warp 8"} <= {row[0] for row in page.rows if row}
    metrics = {row[0]: row[1] for row in page.rows if len(row) > 1}
    assert metrics["launch__grid_size"] == "4"


def test_what_cannot_be_written_is_said_first(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("simulate", GEMM, "--html", f"{GEMM}/p.html") == 1
    assert GEMM in capfd.readouterr().err
    assert tilec("simulate", GEMM, "--html", GEMM) == 1


def test_simulate_counts_only_what_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("simulate", VECTOR_ADD, *SMALL, "--blocks", "1") == 0
    assert "1 blocks on 1 of " in capfd.readouterr().out


def test_simulate_runs_ptx(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(
        ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 A)\n{\n"
        ".reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.reg .f32 %f<2>;\nld.param.u64 %rd0, [A];\nmov.u32 %r0, %tid.x;\n"
        "mad.wide.u32 %rd1, %r0, 4, %rd0;\nld.global.f32 %f0, [%rd1];\nadd.f32 %f1, %f0, %f0;\n"
        "st.global.f32 [%rd1], %f1;\nret;\n}\n"
    )
    options = ("--block", "32", "--arg", "zeros:float32:32", "--target", "sm_90a")
    assert tilec("simulate", str(ptx), *options) == 0
    assert "k on sm_90a: " in capfd.readouterr().out
    assert tilec("simulate", str(ptx)) == 2
    assert tilec("simulate", VECTOR_ADD, "--grid", "1") == 2


def test_a_report_has_the_counters_of_the_simulation(capfd: pytest.CaptureFixture[str]) -> None:
    small = ("-D", "M=256", "-D", "N=256", "-D", "K=512")
    assert tilec("simulate", GEMM, *small, "--counters") == 0
    listed = capfd.readouterr().out.split("under the names of Nsight Compute:")[1]
    simulated = {line.split()[-1]: line.split()[0] for line in listed.splitlines() if line}
    assert tilec("report", GEMM, *small, "--counters") == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert simulated.items() <= {line[-1]: line[0] for line in lines if line}.items()


def test_a_report_says_what_it_cannot_simulate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "dynamic.tl"
    kernel.write_text(
        "import tilelang.language as T\nn = T.dynamic('n')\n\n\n@T.prim_func\n"
        "def double(A: T.Tensor((n,), 'float32')):\n    with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:\n"
        "        for i in T.Parallel(128):\n            A[bx * 128 + i] = A[bx * 128 + i] * 2.0\n"
    )
    assert tilec("report", str(kernel), "--counters") == 0
    assert "double: not simulated, as no argument determines the size n" in capfd.readouterr().out


def test_simulate_and_report_predict_for_the_sizes_that_are_given(capfd: pytest.CaptureFixture[str]) -> None:
    Path("k.tl").write_text(
        "import tilelang.language as T\nn = T.dynamic('n')\n\n\n@T.prim_func\n"
        "def double(A: T.Tensor((n,), 'float32')):\n    with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:\n"
        "        for i in T.Parallel(128):\n            A[bx * 128 + i] = A[bx * 128 + i] * 2.0\n"
    )
    assert tilec("report", "k.tl") == 0
    assert "predicted for a full wave of blocks, whatever the sizes" in capfd.readouterr().out
    assert tilec("report", "k.tl", "--size", "n=256") == 0
    said = re.search(r"([\d.]+) µs predicted for 2 blocks\n", capfd.readouterr().out)
    assert said is not None
    assert tilec("simulate", "k.tl", "--size", "n=256") == 0
    without_launch = re.search(r": ([\d.]+) µs predicted; ", capfd.readouterr().out.splitlines()[0])
    assert without_launch is not None
    target = load_target("sm_90a")
    launch = target.limit("launch_cycles") / target.limit("free_clock_mhz")
    assert float(without_launch[1]) == pytest.approx(float(said[1]) - launch, abs=0.11)


def test_simulate_shows_the_warnings_of_the_build(capfd: pytest.CaptureFixture[str]) -> None:
    Path("k.tl").write_text(
        "import tilelang.language as T\n\n\n@T.prim_func\n"
        'def kernel(A: T.Tensor((128,), "float32"), unused: T.int32):\n'
        "    with T.Kernel(1, threads=128) as bx:\n"
        "        for i in T.Parallel(128):\n"
        "            A[i] = 1.0\n",
        encoding="utf-8",
    )
    assert tilec("simulate", "k.tl") == 0
    assert "warning[unused-parameter]" in capfd.readouterr().err


def test_contents_of_tensors_say_how_long_loops_run(capfd: pytest.CaptureFixture[str]) -> None:
    Path("k.tl").write_text(
        "import tilelang.language as T\n\n\n@T.prim_func\n"
        "def total(A: T.Tensor((4096, 128), 'float32'), n: T.Tensor((1,), 'int32'), B: T.Tensor((128,), 'float32')):\n"
        "    with T.Kernel(1, threads=128) as bx:\n        s = T.alloc_fragment((128,), 'float32')\n"
        "        T.clear(s)\n        for k in T.serial(n[0]):\n"
        "            for i in T.Parallel(128):\n                s[i] += A[k, i]\n        T.copy(s, B)\n"
    )
    cycles = []
    for length in (0, 16, 64):
        assert tilec("simulate", "k.tl", "--contents", f"n={length}") == 0
        found = re.search(r"([\d,]+) cycles", capfd.readouterr().out)
        assert found is not None
        cycles.append(int(found[1].replace(",", "")))
    assert cycles[2] - cycles[0] > 3 * (cycles[1] - cycles[0]) > 0
    assert tilec("report", "k.tl", "--counters", "--contents", "n=64") == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    (counted,) = (line[0] for line in lines if line[-1:] == ["sm__cycles_elapsed.max"])
    assert int(counted.replace(",", "")) == cycles[2]
    assert tilec("simulate", "k.tl", "--contents", "A=1") == 1
    assert "A is no tensor of integers that the kernel only reads" in capfd.readouterr().err
