"""requirements-minimal.txt: it has what tilec asks for, and the commands do without the rest."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = {
    line
    for line in (ROOT / "requirements-minimal.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
}

# What `pip install .` brings as well, by the names that Python imports.
LEFT_OUT = (
    "absl",
    "dateutil",
    "google",
    "immutabledict",
    "markdown_it",
    "mdurl",
    "pandas",
    "pygments",
    "typing_extensions",
    "tzdata",
)

COMMANDS = """\
import os, sys
sys.modules.update(dict.fromkeys(LEFT_OUT))
from tilec.cli.main import main
for words in (
    ["samples/gemm.tl", "--target", "sm_80,sm_90a", "--emit", "fatbin,header", "-o", OUT],
    ["schedule", "samples/gemm.tl"],
    ["emulate", "samples/softmax.tl", "-D", "M=4", "-D", "N=256"],
    ["report", "samples/vector_add.tl", "--html", OUT + "page.html"],
):
    assert main(words) == 0, words
assert "ortools.sat.python.cp_model_helper" in sys.modules
"""


def test_the_list_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert LISTED - {"cuda-pathfinder>=1.4.2"} == set(project["dependencies"])


def test_commands_import_nothing_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    text = f"LEFT_OUT = {LEFT_OUT}\nOUT = {str(tmp_path) + '/'!r}\n" + COMMANDS
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.weekly
def test_a_minimal_environment_compiles(tmp_path: Path) -> None:
    """Installs from a package index, as docs/building.md says."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    listed = ["--no-compile", "--no-deps", "-r", "requirements-minimal.txt", "."]
    subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", *listed], cwd=ROOT, check=True)
    assert not list(tmp_path.glob("venv/lib/python*/site-packages/pandas"))
    cubins = []
    for python in (tmp_path / "venv/bin/python", Path(sys.executable)):
        out = tmp_path / f"{len(cubins)}.cubin"
        command = [python, "-m", "tilec", ROOT / "samples/gemm.tl", "-o", out]
        subprocess.run(command, cwd=tmp_path if not cubins else ROOT, check=True)
        cubins.append(out.read_bytes())
    assert cubins[0] == cubins[1]
