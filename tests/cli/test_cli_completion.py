"""`tilec completion SHELL`: what the shells are told."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import tilec

from tilec.cli.names import COMMANDS

ROOT = Path(__file__).parents[2]


def proposed(line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What may stand in place of the last word, as bash is told: `plain,--opt-level`."""
    words = shlex.split(line)
    with monkeypatch.context() as patched:
        patched.setenv("_TILEC_COMPLETE", "bash_complete")
        patched.setenv("COMP_WORDS", line)
        patched.setenv("COMP_CWORD", str(len(words) - (not line.endswith(" "))))
        assert tilec() == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


@pytest.mark.parametrize(
    ("line", "next_words"),
    [
        ("tilec --opt", ["plain,--opt-level"]),
        ("tilec sam", ["file,sam"]),
        ("tilec em", ["file,em", "plain,emulate"]),
        ("tilec explain pipeline ge", ["file,ge"]),
        ("tilec emulate --adv", ["plain,--adversary"]),
        ("tilec simulate --timel", ["plain,--timeline"]),
        ("tilec explain pipeline --adv", [""]),
        ("tilec gemm.tl --pipeline-strategy warp", ["plain,warp-specialize"]),
        ("tilec completion ", ["plain,bash", "plain,zsh", "plain,fish"]),
        ("tilec new mine --template a", ["plain,attention"]),
        ("tilec gemm.tl -o out", ["file,out"]),
        ("tilec gemm.tl em", ["file,em"]),
        ("tilec gemm.tl --target sm_8", ["plain,sm_80", "plain,sm_86", "plain,sm_87", "plain,sm_89"]),
        ("tilec gemm.tl --target sm_80,sm_90a,sm_10", ["plain,sm_80,sm_90a,sm_100a", "plain,sm_80,sm_90a,sm_103a"]),
        ("tilec gemm.tl --emit cubin,p", ["plain,cubin,problem", "plain,cubin,ptx"]),
        ("tilec targets sm_9", ["plain,sm_90a"]),
        ("tilec explain shape-mis", ["plain,shape-mismatch"]),
        ("tilec --version --cmake-dir --opt", ["plain,--opt-level"]),
        ("tilec --diagnostics-format sarif --emit nothing --opt", ["plain,--opt-level"]),
    ],
)
def test_what_comes_next(
    line: str, next_words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposed(line, capfd, monkeypatch) == next_words


def test_every_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = proposed("tilec ", capfd, monkeypatch)
    assert words == ["file,", *(f"plain,{name}" for name in COMMANDS if " " not in name)]
    for name in COMMANDS:
        assert "plain,--help" in proposed(f"tilec {name} --", capfd, monkeypatch)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("completion", shell) == 0
    script = capfd.readouterr().out
    assert f"_TILEC_COMPLETE={shell}_complete" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(("words", "reply"), [("emulate --adv", "--adversary"), ("emu", "emulate")])
def test_bash_asks_and_is_answered(words: str, reply: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "tilec"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilec "$@"\n')
    program.chmod(0o755)
    assert tilec("completion", "bash") == 0
    script = capfd.readouterr().out.replace("_tilec_completion_setup;", "")  # `complete` is for a shell with a terminal
    asking = (
        f"COMP_WORDS=(tilec {words}); COMP_CWORD={len(words.split())}; compopt() {{ :; }}; _tilec_completion tilec; "
    )
    asking += 'echo "${COMPREPLY[@]}"'
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asking}"], env={**os.environ, **path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{reply}\n"


def test_fish_is_not_told_of_words_with_commas(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script, which is click's, would take what stands before the comma."""
    for begun, said in (("sm_90", "plain,sm_90a"), ("sm_80,sm_9", "")):
        monkeypatch.setenv("_TILEC_COMPLETE", "fish_complete")
        monkeypatch.setenv("COMP_WORDS", f"tilec k.tl --target {begun}")
        monkeypatch.setenv("COMP_CWORD", begun)
        assert tilec() == 0
        assert [line for line in capfd.readouterr().out.splitlines() if "file," not in line] == ([said] if said else [])


def test_shells_that_are_not_known(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tilec("completion", "csh") == 2
    monkeypatch.setenv("_TILEC_COMPLETE", "csh_complete")
    assert tilec() == 1
    assert capfd.readouterr().out == ""
