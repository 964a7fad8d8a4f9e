"""Tests of the command line do not see the folder that they are started in. What C++ programs are built with, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from native import STRICT, done


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test works in a folder of its own; parser tables and schedules are shared between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEC_DOCS_URL", raising=False)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    source, library = str(Path(__file__).with_name("fake_cuda.c")), str(folder / "libcuda.so.1")
    named = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    done("gcc", "-std=c11", *named, *STRICT, "-Wno-pedantic", source, "-o", library)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


@pytest.fixture
def tilec_program(tmp_path: Path) -> Path:
    """The command, as it is here."""
    program = tmp_path / "bin" / "tilec"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilec "$@"\n')
    program.chmod(0o755)
    return program
