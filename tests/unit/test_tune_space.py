"""What can be tuned: read from a file, or found in the text of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend.syntax.parse import parse_file
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.tune import auto, knobs, space_file, tuned
from tilec.tune.space import Space

SAMPLES = Path(__file__).parents[2] / "samples"


def module_of(sample: str) -> object:
    path = SAMPLES / sample
    return parse_file(SourceFile(path.name, path.read_text(encoding="utf-8")), None)


def test_a_file() -> None:
    text = (
        '[constants]\nblock_M = [64, 128]\ndtype = "float16"\n[options]\ncluster = ["none", "2x1"]\nstmatrix = [true]\n'
    )
    found = space_file.read_space(text, "s.toml", ["block_M", "dtype"])
    assert [(axis.name, axis.values) for axis in found.axes] == [
        ("block_M", (64, 128)),
        ("dtype", ("float16",)),
        ("--cluster", ("none", "2x1")),
        ("--stmatrix", (True,)),
    ]


@pytest.mark.parametrize(
    ("text", "title", "help"),
    [
        ("", "s.toml has no values to search", "write name"),
        ("[constants]\n", "s.toml has no values to search", "write name"),
        ("[constants\n", "s.toml is not TOML", "write name"),
        ("block_M = [64]\n", "unknown member 'block_M'", "under [constants] and [options]"),
        ("[constants]\nblok_M = [64]\n", "`blok_M` in s.toml is not a constant of the kernel", "did you mean block_M?"),
        ("[constants]\nblock_M = []\n", "'block_M' has no values", "at least one value"),
        (
            "[constants]\nblock_M = [[64]]\n",
            "constants.block_M[0]: expected a number, true, false or a string, found [64]",
            "numbers, true, false or strings",
        ),
        ("[options]\nclusters = [1]\n", "`clusters` in s.toml is not a tunable option", "did you mean cluster?"),
        (
            "[options]\nwarps = [1]\n",
            "`warps` in s.toml is not a tunable option",
            "tunable options: arrivals, auto-pipeline",
        ),
        ("[options]\nconsumer-warpgroups = [8]\n", "tries consumer-warpgroups = 8", "a number from 1 to 7"),
        ("[options]\nstmatrix = [1]\n", "tries stmatrix = 1", "true or false"),
        ("[options]\narrivals = ['block']\n", "tries arrivals = 'block'", "one of warp, thread"),
    ],
)
def test_a_file_that_says_nothing(text: str, title: str, help: str) -> None:
    with pytest.raises(CompileError) as caught:
        space_file.read_space(text, "s.toml", ["block_M", "block_N"])
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-space"
    assert title in diagnostic.title
    assert help in (diagnostic.help or "")


def test_an_option_by_the_name_that_it_had() -> None:
    heard: list[Diagnostic] = []
    found = space_file.read_space("[options]\nstore-role = [true, false]\n", "s.toml", [], heard.append)
    assert [(axis.name, axis.values) for axis in found.axes] == [("--epilogue-warp", (True, False))]
    assert [(d.code, d.help) for d in heard] == [("deprecated-spelling", "write epilogue-warp")]


def test_every_knob_is_a_field_of_the_options() -> None:
    assert set(knobs.KNOBS.values()) <= set(CompileOptions.__dataclass_fields__)
    assert all(name.replace("-", "_") == field for name, field in knobs.KNOBS.items())


def test_a_point_becomes_options() -> None:
    base = CompileOptions(defines=(("M", 64), ("block_M", 32)))
    point = (
        ("--cluster", "2x1"),
        ("--consumer-warpgroups", "auto"),
        ("--rasterisation", 8),
        ("--stmatrix", False),
        ("block_M", 128),
    )
    made = knobs.apply_point(point, base)
    assert dict(made.defines) == {"M": 64, "block_M": 128}
    assert (made.cluster, made.consumer_warpgroups, made.rasterisation, made.stmatrix) == ((2, 1, 1), None, 8, False)


# ---- auto ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (
            "gemm.tl",
            {"block_M": "tile", "block_N": "tile", "block_K": "tile", "num_stages": "stages", "threads": "threads"},
        ),
        # queries is a quotient of two others, and follows from them.
        ("attention/gqa.tl", {"block_M": "tile", "block_N": "tile", "num_stages": "stages", "threads": "threads"}),
    ],
)
def test_roles_of_constants(sample: str, expected: dict[str, str]) -> None:
    assert auto.find_tunable_roles(module_of(sample)) == expected


def test_auto_tries_around_what_is_written() -> None:
    axes = {axis.name: axis.values for axis in auto.build_auto_space(module_of("gemm.tl")).axes}
    assert axes == {
        "block_M": (64, 128, 256),
        "block_N": (64, 128, 256),
        "block_K": (32, 64, 128),
        "num_stages": (2, 3, 4, 6),
        "threads": (128, 256),
    }


def test_an_extent_of_a_tensor_is_no_choice() -> None:
    text = """\
import tilelang.language as T
rows, width = 64, 512
extent = width * 2
@T.prim_func
def kernel(A: T.Tensor((rows, extent), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((rows, width), "float32")
        T.copy(A[0, 0], s)
"""
    assert auto.build_auto_space(parse_file(SourceFile("k.tl", text), None)) == Space(())


# ---- the file that comes out -----------------------------------------------------------------------------------------

BEST = tuned.TunedVariant(
    "0" * 64, "sm_80", "matmul", (("block_M", 64), ("--cluster", "none")), "3.0 µs", '{"tilec": 1}'
)


def test_a_tuned_file_reads_back() -> None:
    assert tuned.read_tuned(tuned.write_tuned(BEST), "t.json") == BEST


def test_what_a_tuned_file_changes() -> None:
    base = CompileOptions(target="sm_80", defines=(("M", 64),), fast_math=True)
    made = tuned.apply_tuned(BEST, base, "t.json")
    assert (made.defines, made.cluster) == ((("block_M", 64), ("M", 64)), (1, 1, 1))
    assert (made.schedule, made.entry, made.tuned_for, made.fast_math) == ('{"tilec": 1}', "matmul", "0" * 64, True)
    with pytest.raises(CompileError, match=r"t\.json was tuned for sm_80, not for sm_90a"):
        tuned.apply_tuned(BEST, CompileOptions(), "t.json")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", "is not a file of tilec tune"),
        ("[]", "is not a file of tilec tune"),
        ('{"constants": {}, "options": {}}', "'tuned' is missing"),
        (
            tuned.write_tuned(BEST).replace('"block_M": 64', '"block_M": [64]'),
            "constants.block_M: expected a number, true, false or a string, found [64]",
        ),
    ],
)
def test_a_file_that_is_not_tuned(text: str, title: str) -> None:
    with pytest.raises(CompileError) as caught:
        tuned.read_tuned(text, "t.json")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, title in diagnostic.title) == ("bad-tuned-file", True)
