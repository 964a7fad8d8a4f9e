"""Defines, the environment, and what each optimisation level means."""

from __future__ import annotations

import pytest

from tilec.support.diagnostics import CompileError
from tilec.support.option_fields import parse_cluster, parse_rasterisation, parse_subtile, parse_value
from tilec.support.options import (
    OPTIONS,
    CompileOptions,
    EnvironmentSwitches,
    Value,
    cache_folder,
    describe_changes,
    parse_define,
    read_switches,
)


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


def test_cache_folder() -> None:
    assert cache_folder({"TILEC_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == "/a"
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == "/b/tilec"
    assert cache_folder({}).endswith("/.cache/tilec")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, EnvironmentSwitches()),
        ({"TILE_AS_DEBUG_UNLIMITED_SMEM": "1"}, EnvironmentSwitches(unlimited_smem=True)),
        ({"TILE_AS_DEBUG_UNLIMITED_SMEM": "0"}, EnvironmentSwitches()),
        ({"TILE_AS_DEBUG_UNLIMITED_SMEM": "true"}, EnvironmentSwitches()),
        ({"TILEIR_PREFER_TMA_FOR_LOAD_STORE": "true"}, EnvironmentSwitches(prefer_tma=True)),
        ({"TILEIR_PREFER_TMA_FOR_LOAD_STORE": "1"}, EnvironmentSwitches()),
        ({"TILEIR_ALWAYS_SWIZZLE": "0"}, EnvironmentSwitches(always_swizzle=True)),
        ({"TILEIR_ALWAYS_SWIZZLE": ""}, EnvironmentSwitches(always_swizzle=True)),
        ({"TILEIR_DELAY_TMA_STORE_WAIT": "0"}, EnvironmentSwitches(delay_tma_store_wait=False)),
        ({"TILEIR_DELAY_TMA_STORE_WAIT": "2"}, EnvironmentSwitches()),
    ],
)
def test_switches(environment: dict[str, str], expected: EnvironmentSwitches) -> None:
    assert read_switches(environment) == expected


def test_a_define_of_too_large_a_number() -> None:
    for value in ("0x" + "f" * 4000, "9" * 4000):
        with pytest.raises(CompileError, match="bad-define"):
            parse_define(f"N={value}")


@pytest.mark.parametrize("value", ["", "yes", "0x1", "1.5", "+-+1", "--1", "+", "\u0661", "1" * 5000])
def test_a_delay_is_a_number(value: str) -> None:
    with pytest.raises(CompileError, match="bad-environment"):
        read_switches({"TILEIR_DELAY_TMA_STORE_WAIT": value})


@pytest.mark.parametrize(
    ("text", "extents"), [("2", (2, 1, 1)), ("2x1", (2, 1, 1)), ("1X2x4", (1, 2, 4)), ("none", (1, 1, 1))]
)
def test_clusters(text: str, extents: tuple[int, int, int]) -> None:
    assert parse_value(OPTIONS["cluster"], None, text) == extents


@pytest.mark.parametrize("text", ["", "0x1", "2x", "1x1x1x1", "two"])
def test_no_cluster(text: str) -> None:
    with pytest.raises(CompileError, match="bad-cluster"):
        parse_cluster(text)


@pytest.mark.parametrize(("text", "parts"), [("auto", None), ("none", 1), ("1", 1), ("4", 4)])
def test_subtiles(text: str, parts: int | None) -> None:
    assert parse_value(OPTIONS["subtile"], None, text) == parts


@pytest.mark.parametrize("text", ["", "0", "-2", "half"])
def test_no_subtiles(text: str) -> None:
    with pytest.raises(CompileError, match="bad-subtile"):
        parse_subtile(text)


@pytest.mark.parametrize(("text", "panel"), [("auto", None), ("none", 0), ("8", 8)])
def test_rasterisation(text: str, panel: int | None) -> None:
    assert parse_value(OPTIONS["rasterisation"], None, text) == panel


@pytest.mark.parametrize("text", ["", "0", "-8", "hilbert", "8x8"])
def test_no_rasterisation(text: str) -> None:
    with pytest.raises(CompileError, match="bad-rasterisation"):
        parse_rasterisation(text)


def test_what_was_asked_for_beside_what_is_usual() -> None:
    """No place of a file is among it, nor what changes no code."""
    assert describe_changes(CompileOptions()) == {}
    asked = CompileOptions(
        target="sm_80",
        cache_dir="/secret",
        lint="error",
        defines=(("M", 1),),
        schedule="the text of a trace",
        cluster=(2, 1, 1),
        persistent=False,
        opt_level=2,
        switches=EnvironmentSwitches(always_swizzle=True),
    )
    assert describe_changes(asked) == {
        "opt-level": "2",
        "persistent": "false",
        "cluster": "2x1x1",
        "always-swizzle": "true",
        "schedule": "given",
    }
