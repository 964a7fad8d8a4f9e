"""docs/attention.md reads schedules: they must be those that the sample has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tilec.cli.main import main

ROOT = Path(__file__).parents[2]
FLASH = str(ROOT / "samples" / "flash_attention.tl")
HALVES = str(ROOT / "tests" / "kernels" / "attention_halves.tl")
TEXT = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*) \|$", TEXT, re.MULTILINE)


def schedule(capfd: pytest.CaptureFixture[str], *switches: str, kernel: str = FLASH) -> list[str]:
    assert main(["schedule", kernel, *switches]) == 0
    return capfd.readouterr().out.splitlines()


def interval(lines: list[str]) -> int:
    (found,) = re.findall(r"II (\d+) cycles, optimal", "\n".join(lines))
    return int(found)


def test_the_reading_is_of_what_the_sample_gives(capfd: pytest.CaptureFixture[str]) -> None:
    shown = schedule(capfd)
    quoted = [line for block in re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S) for line in block.splitlines()]
    assert len(quoted) > 10
    assert [line for line in quoted if line not in shown] == []


@pytest.mark.some(2)
@pytest.mark.parametrize("row", [row for row in ROWS if re.search(r"\| \d \| \d+ \| .* \| [\d.]+$", row)])
def test_intervals_of_tiles(row: str, capfd: pytest.CaptureFixture[str]) -> None:
    tile, _, ii, _, each = row.split(" | ")
    defines = tile.strip("`") if tile.startswith("`") else ""
    assert interval(schedule(capfd, *shlex.split(defines))) == int(ii)
    given = {"block_M": 128, "block_N": 128, **{k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", defines)}}
    assert float(each) == round(int(ii) / given["block_M"] / given["block_N"] * 64, 2)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if re.fullmatch(r"(`--.*`)? ?\| \d+ \| [01]\.\d+ \| \d+ \| [01]\.\d+", row)]
)
def test_what_each_overlap_is_worth(row: str, capfd: pytest.CaptureFixture[str]) -> None:
    switches, ii, relative, measured, relative_measured = (cell.strip("` ") for cell in row.split("|"))
    assert interval(schedule(capfd, *shlex.split(switches), "--subtile", "none")) == int(ii)
    assert float(relative) == round(2048 / int(ii), 2)
    assert float(relative_measured) == round(int(measured) / 689, 2)


@pytest.mark.some(2)
@pytest.mark.parametrize("row", [row for row in ROWS if re.fullmatch(r".*\| \d+ \| \w+ \(\d, \d\) \| \d+", row)])
def test_what_parts_are_worth(row: str, capfd: pytest.CaptureFixture[str]) -> None:
    tile, whole, chosen, parts = (cell.strip("` ") for cell in row.split("|"))
    assert interval(schedule(capfd, *shlex.split(tile), "--subtile", "none")) == int(whole)
    shown = schedule(capfd, *shlex.split(tile), "--subtile", "2")
    assert interval(shown) == int(parts)
    assert any(line.split()[:1] == ["subtile"] and f" {chosen} " in line for line in shown)


@pytest.mark.weekly
def test_halves_with_a_state_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    for depth, ii in re.findall(r"(\d+) cycles with head dimension (\d+)", TEXT):
        assert interval(schedule(capfd, "-D", f"D={ii}", kernel=HALVES)) == int(depth)


@pytest.mark.weekly
def test_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    said = re.search(r"in step take (\d+) cycles\s+by the schedule", TEXT)
    assert said
    assert interval(schedule(capfd, "-D", "dtype=float8_e4m3fn", "-D", "block_N=128", "--subtile", "none")) == int(
        said[1]
    )


def test_bytes_of_a_large_head(capfd: pytest.CaptureFixture[str]) -> None:
    said = re.search(r"`(-D D=256 [^`]*)`: (\d+) registers, no spill, (\d+) cycles", TEXT)
    assert said
    assert interval(schedule(capfd, *shlex.split(said[1]), "-D", "dtype=float8_e4m3fn")) == int(said[3])
