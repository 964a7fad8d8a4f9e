"""Machine code is kept by what it is made of: found again whole, made again where it is damaged or asked for afresh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilec.ptx import assemble as assembler, assembled_cache
from tilec.ptx.assembled_cache import assemble_cached
from tilec.support.staging import read_entry, write_entry

PTX = ".version 8.0\n.target {target}\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n"
a, b, c, d, e = (f"// {letter}\n.visible .entry k()" for letter in "abcde")


class Assembler:
    """Counts what it makes; each cubin is another one, so that a test knows which one it was given."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(
        self, ptx: str, target: str, *, opt_level: int = 3, line_info: bool = False
    ) -> assembler.AssemblerResult:
        self.made += 1
        log = f"info    : Function properties for 'k':\ninfo    : used {self.made} registers, 16 bytes smem\n"
        return assembler.parse_result(cubin(f"{self.made} {target} {opt_level}"), log)


def cubin(what: str) -> bytes:
    """As much of a cubin as the cache looks at."""
    return b"\x7fELF\0.text.k\0" + what.encode()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Assembler:
    counted = Assembler()
    monkeypatch.setattr(assembler, "assemble_module", counted)
    return counted


def test_found_again(tmp_path: Path, counted: Assembler) -> None:
    first = assemble_cached(a, "sm_80", tmp_path)
    assert assemble_cached(a, "sm_80", tmp_path) == first
    assert first.entries[0].smem_bytes == 16
    assert counted.made == 1


def test_everything_that_it_depends_on_is_in_the_key(tmp_path: Path, counted: Assembler) -> None:
    ways = [(a, "sm_80", 3), (b, "sm_80", 3), (a, "sm_90a", 3), (a, "sm_80", 1)]
    made = [assemble_cached(ptx, target, tmp_path, opt_level=level).cubin for ptx, target, level in ways]
    assert len(set(made)) == len(ways)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(assembled_cache, "installed_versions", lambda: {"nvidia-nvjitlink": "another"})
        assert assemble_cached(a, "sm_80", tmp_path).cubin not in made


def test_without_a_folder_and_afresh(tmp_path: Path, counted: Assembler) -> None:
    assemble_cached(a, "sm_80", None)
    assemble_cached(a, "sm_80", None)
    assert counted.made == 2
    assemble_cached(a, "sm_80", tmp_path)
    again = assemble_cached(a, "sm_80", tmp_path, afresh=True)
    assert counted.made == 4
    assert assemble_cached(a, "sm_80", tmp_path) == again


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"\xff" + data[1:]])
def test_a_damaged_entry_is_made_again(tmp_path: Path, counted: Assembler, damage: object) -> None:
    assert callable(damage)
    assemble_cached(a, "sm_80", tmp_path)
    (entry,) = (tmp_path / "assembled").iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    again = assemble_cached(a, "sm_80", tmp_path)
    assert again.cubin == cubin("2 sm_80 3")
    assert assemble_cached(a, "sm_80", tmp_path) == again


@pytest.mark.parametrize("way", ["another key", "not machine code", "code of another kernel", "no report", "length"])
def test_an_entry_that_is_whole_but_another_is_made_again(tmp_path: Path, counted: Assembler, way: str) -> None:
    for ptx in (a, b):
        assemble_cached(ptx, "sm_80", tmp_path)
    entry, other = (tmp_path / "assembled" / assembled_cache.cache_key(ptx, "sm_80", 3) for ptx in (a, b))
    data = read_entry(entry, entry.name)
    log = data[8 : 8 + int.from_bytes(data[:8], "little")]
    contents = {
        "not machine code": data[: 8 + len(log)] + b"hello",
        "code of another kernel": data.replace(b".text.k", b".text.l"),
        "no report": bytes(8) + data[8 + len(log) :],
        "length": b"\xff" * 8 + data[8:],
    }
    if way == "another key":
        entry.write_bytes(other.read_bytes())
    else:
        write_entry(entry, entry.name, contents[way])
    assert assemble_cached(a, "sm_80", tmp_path).cubin == cubin("3 sm_80 3")
    assert assemble_cached(a, "sm_80", tmp_path).cubin == cubin("3 sm_80 3")


def test_a_folder_that_cannot_be_written(tmp_path: Path, counted: Assembler) -> None:
    (tmp_path / "file").write_text("")
    assert assemble_cached(a, "sm_80", tmp_path / "file").cubin == cubin("1 sm_80 3")


def test_the_oldest_go(tmp_path: Path, counted: Assembler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembled_cache, "MOST_ENTRIES", 4)
    for number, ptx in enumerate((a, b, c, d)):
        assemble_cached(ptx, "sm_80", tmp_path)
        os.utime(tmp_path / "assembled" / assembled_cache.cache_key(ptx, "sm_80", 3), (number, number))
    assemble_cached(a, "sm_80", tmp_path)  # used now: not the oldest any more
    assemble_cached(e, "sm_80", tmp_path)
    left = {entry.name for entry in (tmp_path / "assembled").iterdir()}
    assert left == {assembled_cache.cache_key(ptx, "sm_80", 3) for ptx in (a, e)}


def test_what_the_real_assembler_makes(tmp_path: Path) -> None:
    ptx = PTX.format(target="sm_80", name="nothing")
    made = assemble_cached(ptx, "sm_80", tmp_path)
    assert assemble_cached(ptx, "sm_80", tmp_path) == made
    assert made.cubin.startswith(b"\x7fELF")
    assert [entry.name for entry in made.entries] == ["nothing"]
