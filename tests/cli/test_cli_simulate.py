"""`tilec simulate`: what it says of a kernel, of PTX, of a mistake; and its timeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec


def test_simulate_says_how_long_and_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("simulate", GEMM, "-D", "M=256", "-D", "N=256", "-D", "K=512", "--timeline", "t.json") == 0
    said = capfd.readouterr().out
    assert "4 blocks on 4 of 132 multiprocessors" in said
    assert "tensor cores" in said
    assert "mbarrier: copy of line" in said
    assert "the schedule says" in said
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"tensor", "copies", "warp 0", "warp 8"} <= tracks
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] < 1000:
            track = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(track, 0.0) - 0.02
            ends[track] = event["ts"] + event["dur"]


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
