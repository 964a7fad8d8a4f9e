"""Commands, options and stages that the documents name in passing are there: in prose, where nothing runs them."""

from __future__ import annotations

import re
from functools import cache

from fenced import BLOCK, ROOT, pages

from tilec.cli.names import COMMANDS, find_command
from tilec.driver.pipeline import PIPELINE
from tilec.support.options import STAGES

INLINE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w/-])--?[A-Za-z][\w-]*")
ELSEWHERE = {
    "docs/command-line.md": ("--max-chain-length", "--do-base-address-strength-reduce", "--scev-cgp-inst-limit"),
    "docs/nsight.md": ("--cache-control", "--clock-control"),
    "CONTRIBUTING.md": ("--hypothesis-profile",),
}
"""Options that are said not to be there, or to be those of a script."""
PAGES = [*pages(), "benchmarks/README.md", "targets/README.md", "samples/README.md"]
EMITTED = frozenset(("ptx", "cubin", "header", "fatbin"))
OTHERS = re.compile(r"\b(nvcc|ncu|ptxas|pytest|pip|python|cmake|ninja|git|nvdisasm|cuobjdump|ruff|dask|ray|code)\b")
"""Whose options are their own."""


def prose(page: str) -> str:
    return BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))


@cache
def options() -> frozenset[str]:
    """Of all commands together."""
    found = {"--help", "--version"}
    for command in (find_command([])[0], *(find_command(name.split())[0] for name in COMMANDS)):
        for param in command.params:
            found |= {*param.opts, *param.secondary_opts, *getattr(param, "former", ())}
    return frozenset(found)


def spans(page: str) -> list[str]:
    return INLINE.findall(prose(page))


def named_commands(page: str) -> list[str]:
    named = [words[1] for span in spans(page) if (words := span.split())[:1] == ["tilec"] and len(words) > 1]
    return [word for word in named if re.fullmatch(r"[a-z]+", word)]


def named_options(page: str) -> list[str]:
    # Alone they are tilec's, but where a page is about other programs.
    begins = ("tilec",) if page == "benchmarks/README.md" else ("tilec", "-")
    ours = [span for span in spans(page) if span.startswith(begins) and not OTHERS.search(span)]
    named = [option for span in ours for option in OPTION.findall(span) if len(option) > 2 and option[:2] != "-l"]
    return [option for option in named if option not in ELSEWHERE.get(page, ())]


def unknown_stages(page: str) -> list[str]:
    text = prose(page)
    passes = {row.name for row in PIPELINE} | set(re.findall(r'Pass\("([a-z-]+)"', text))  # those that it adds, too
    allowed = {"emit": {*STAGES, *EMITTED}, "stop-after": {*STAGES, *passes}}
    named = re.findall(r"--(stop-after|emit)[ =]([a-z,-]+)", text)
    return [f"--{option} {word}" for option, words in named for word in words.split(",") if word not in allowed[option]]


def test_commands_that_are_named_exist() -> None:
    commands = {name.split()[0] for name in COMMANDS}
    assert [(page, name) for page in PAGES for name in named_commands(page) if name not in commands] == []


def test_options_that_are_named_exist() -> None:
    named = [(page, option) for page in PAGES for option in named_options(page)]
    assert [(page, o) for page, o in named if o not in options() and o[:2] not in options()] == []


def test_stages_that_are_named_exist() -> None:
    assert [(page, stage) for page in PAGES for stage in unknown_stages(page)] == []
