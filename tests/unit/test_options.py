"""Defines, the environment, and what each optimisation level means."""

from __future__ import annotations

import pytest

from tilec.diag import CompileError
from tilec.options import CompileOptions, Strategy, Value, cache_folder, parse_define, wants_unlimited_smem


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("M=4096", "M", 4096),
        ("scale=-1.5e-3", "scale", -1.5e-3),
        ("causal=True", "causal", True),
        ("dtype=bfloat16", "dtype", "bfloat16"),
        ('dtype="bfloat16"', "dtype", "bfloat16"),
        ("N=1+1", "N", "1+1"),
        ("shape=(1, 2)", "shape", "(1, 2)"),
        ("empty=", "empty", ""),
    ],
)
def test_defines(text: str, name: str, value: Value) -> None:
    parsed_name, parsed = parse_define(text)
    assert (parsed_name, parsed) == (name, value)
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["M", "=4", "4M=1", ""])
def test_a_define_without_a_name_or_value(text: str) -> None:
    with pytest.raises(CompileError, match="bad-define"):
        parse_define(text)


@pytest.mark.parametrize(
    ("level", "asked", "used"),
    [
        (0, "auto", "none"),
        (1, "warp-specialize", "none"),
        (2, "auto", "unspecialize"),
        (2, "none", "none"),
        (2, "warp-specialize", "warp-specialize"),
        (3, "auto", "auto"),
        (3, "unspecialize", "unspecialize"),
    ],
)
def test_the_level_bounds_the_strategy(level: int, asked: Strategy, used: Strategy) -> None:
    assert CompileOptions(opt_level=level, pipeline_strategy=asked).strategy == used


def test_cache_folder() -> None:
    assert cache_folder({"TILEC_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == "/a"
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == "/b/tilec"
    assert cache_folder({}).endswith("/.cache/tilec")


def test_unlimited_shared_memory_is_asked_for_with_1() -> None:
    assert wants_unlimited_smem({"TILE_AS_DEBUG_UNLIMITED_SMEM": "1"})
    assert not wants_unlimited_smem({"TILE_AS_DEBUG_UNLIMITED_SMEM": "0"})
    assert not wants_unlimited_smem({})
