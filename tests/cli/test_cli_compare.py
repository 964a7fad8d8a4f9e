"""`tilec compare`: a made-up profile beside the simulation, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import GEMM, tilec

SHAPE = ("-D", "M=256", "-D", "N=256", "-D", "K=512")
HEADER = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'


def test_each_metric_that_both_know(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(
        "==PROF== Connected\n" + HEADER + '"0","gemm","dram__bytes_read.sum","Kbyte","1,048.576"\n'
        '"0","gemm","launch__grid_size","","4"\n"0","gemm","lts__throughput.avg.pct","%","3.5"\n'
    )
    assert tilec("compare", str(profile), GEMM, *SHAPE, "--all-metrics") == 0
    said = capfd.readouterr().out.splitlines()
    assert said[0].startswith("gemm on sm_90a: 1 launch in")
    assert [line.split() for line in said[2:4]] == [
        ["4", "4", "1.00", "launch__grid_size"],
        ["1,048,576", "524,288", "0.50", "dram__bytes_read.sum", "[byte]"],
    ]
    assert said[4] == "not predicted: lts__throughput.avg.pct"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n", "is not a profile that can be compared"),
        (HEADER + '"0","softmax","launch__grid_size","","4"\n', "has no launch of gemm"),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, said: str) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(text)
    assert tilec("compare", str(profile), GEMM, *SHAPE) == 1
    code, err = "bad-profile", capfd.readouterr().err
    assert f"error[{code}]" in err and said in err
