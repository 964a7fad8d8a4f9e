"""A persistent grid on sm_100a by cluster launch control: right whatever the machine does, alone, in clusters and in
pairs of blocks; every piece of the protocol needed; and why a kernel stays with a fixed stride."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from harness import HERE, SAMPLES

from tilec.driver.build import Build, Observer, build_kernel, build_library, build_reports
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.emu import Fault
from tilec.ir import warp
from tilec.ir.warp_text import show_program
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import TILE_SCHEDULERS, CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL = HERE / "tensor_gemm.tl"
PLAIN = HERE / "persistent_grid.tl"
AT_ONCE = 8
ADVERSARIES = (None, 1, 2, 3)  # which refuse one request of four, but for None
SMALL: dict[str, Value] = {"M": 384, "N": 64, "bN": 16, "K": 64, "bK": 32}  # 12 tiles
PAIRS: dict[str, Value] = {"M": 768, "N": 64, "bN": 32, "K": 64, "bK": 32}  # 6 pairs of tiles


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs eight blocks at once."""
    choices = ("choose_persistent_grid", "choose_tile_scheduler", "choose_rasterisation")
    for module in (*(f"choices.{name}" for name in choices), "grid.persistent"):
        name = f"tilec.passes.{module}.blocks_at_once"
        monkeypatch.setattr(name, lambda _, cluster: AT_ONCE // cluster * cluster)
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)


def made(
    path: Path, sizes: dict[str, Value], cluster: tuple[int, int, int] | None = None, **asked: str | int | bool
) -> Build:
    options = CompileOptions(**{"target": "sm_100a", **asked}, defines=tuple(sizes.items()), cluster=cluster)
    return build_kernel(SourceFile(path.name, path.read_text(encoding="utf-8")), options, Observer())


def is_right(built: Build, *adversaries: int | None, sizes: dict[str, int] | None = None) -> bool:
    for adversary in adversaries or ADVERSARIES:
        found = emulate.draw_arguments(built.kernel, built.manifest, adversary or 0, sizes)
        expected = found.copy()
        emulate.emulate_build(built, found, options=RunOptions(adversary=adversary))
        emulate.run_reference(built.kernel, expected)
        results = emulate.compare_arguments(built.kernel, built.manifest, found, expected)
        if not results or not all(result.matches for result in results):
            return False
    return True


def decided(built: Build) -> tuple[str, str, str]:
    """By whom, what and why of the tile scheduler."""
    rows = json.loads(built.trace)["tilec"]["decisions"]
    (row,) = (row for row in rows if row["what"] == "tile scheduler")
    return row["by"], row["chosen"], row["why"]


def asks(built: Build) -> bool:
    return "clusterlaunchcontrol.try_cancel" in built.ptx


@cache
def alone() -> Build:
    return made(KERNEL, SMALL)


@cache
def in_pairs() -> Build:
    return made(KERNEL, PAIRS, (1, 2, 1))


# ---- right -----------------------------------------------------------------------------------------------------------


def test_one_block_for_each_tile() -> None:
    built = alone()
    assert built.manifest.grid == (12, 1, 1) and asks(built)
    (entry,) = built.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    assert is_right(built)


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_iterations(trips: int) -> None:
    assert is_right(made(KERNEL, {**SMALL, "K": 32 * trips, "num_stages": 4}), None, trips)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_iterations_at_run_time(trips: int) -> None:
    sizes: dict[str, Value] = {"M": 1280, "N": 128, "bN": 128, "threads": 256, "num_stages": 4, "tA": True}
    built = made(KERNEL, {**sizes, "tB": False, "at_run_time": True})
    assert asks(built) and is_right(built, None, 1, sizes={"k": 64 * trips})


@pytest.mark.parametrize(
    ("cluster", "grid"),
    [((2, 1, 1), (24, 1, 1)), ((2, 2, 1), (12, 2, 1)), ((1, 1, 2), (12, 1, 2)), ((3, 1, 1), (24, 1, 1))],
    ids=str,
)
def test_clusters(cluster: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
    """6 × 2 × 2 blocks in panels; some load together, and products are by mma.sync."""
    built = made(PLAIN, {"rank": 3, "batch": 2, "M": 128, "N": 384, "panel": 2, "trips": 1}, cluster)
    assert built.manifest.grid == grid and built.manifest.cluster == cluster
    assert "multicast::cluster::all" in built.ptx and is_right(built, None, 1)


def test_pairs_of_blocks() -> None:
    """Two versions of the sum; of the role that asks for products only the first block's thread hears answers."""
    built = in_pairs()
    assert set(re.findall(r"tcgen05\S*cta_group::(\d)", built.ptx)) == {"2"}
    assert built.manifest.grid == (6, 2, 1) and "multicast::cluster::all" in built.ptx
    (ring,) = (ring for ring in built.program.rings if ring.heard_by)
    assert (ring.heard_by, ring.arrivals) == (2, 2 * (4 + 1) + 1)
    assert is_right(built)


def test_tiles_that_hang_over() -> None:
    assert is_right(made(SAMPLES / "gemm.tl", {"M": 440, "N": 264, "K": 72}), None, 1)


def test_a_number_of_tiles_that_the_launch_knows() -> None:
    """Fewer than run at once, and more."""
    built = made(SAMPLES / "gemm" / "dynamic.tl", {"N": 256, "K": 128, "block_N": 128})
    assert asks(built) and built.manifest.blocks({"M": 1025}) == (18, 1, 1)
    for rows in (1, 600):
        assert is_right(built, 1, sizes={"M": rows}), rows


def test_a_block_takes_over_several() -> None:
    """With no refusal but the last one the first block does all tiles, and the answers go round their ring."""
    mine = re.sub(r"(%r\d+), %ctaid\.x", r"\1, 0", alone().ptx)  # all who run say that they are block 0
    assert mine != alone().ptx
    assert is_right(replace(alone(), ptx=mine), None)
    assert not is_right(replace(alone(), ptx=mine), 1, 2, 3)


# ---- every piece is needed -------------------------------------------------------------------------------------------


def is_caught(built: Build, lines: list[str]) -> bool:
    with suppress(Fault):
        return not is_right(replace(built, ptx="\n".join(lines)), None, 1, 2)
    return True


def of_walk(built: Build) -> Callable[[str], list[int]]:
    """Lines that have to do with the answers, by their barriers' offsets in shared memory."""
    program = built.program
    at = program.barriers_at
    for ring in program.rings:
        if ring.heard_by:
            break
        at += 2 * warp.MBARRIER_BYTES * ring.depth
    offsets = rf"\[%r\d+\+({at}|{at + warp.MBARRIER_BYTES * 3})\]"
    lines = built.ptx.split("\n")
    return lambda pattern: [n for n, line in enumerate(lines) if re.search(pattern, line) and re.search(offsets, line)]


@pytest.mark.weekly
@pytest.mark.parametrize("build_of", [alone, in_pairs])
@pytest.mark.parametrize("pattern", [r"mbarrier\.try_wait", r"mbarrier\.arrive\.shared", r"expect_tx", r"try_cancel"])
def test_each_piece_is_needed(pattern: str, build_of: Callable[[], Build]) -> None:
    """Awaited, released, announced, asked for."""
    built = build_of()
    lines, places = built.ptx.split("\n"), of_walk(built)(pattern)
    assert places
    unseen = [lines[place] for place in places if not is_caught(built, [*lines[:place], "", *lines[place + 1 :]])]
    assert unseen == []


@pytest.mark.parametrize("build_of", [alone, in_pairs])
def test_who_reads_an_answer_fences_before_the_next(build_of: Callable[[], Build]) -> None:
    """No fence behind an answer but the producer's own: its read is known to those who fence after it."""
    built = build_of()
    lines = built.ptx.split("\n")
    asked = [place for place, line in enumerate(lines) if "get_first_ctaid" in line]
    fences = [next(n for n in range(at, len(lines)) if "fence.proxy.async" in lines[n]) for at in asked]
    assert len(fences) == 3
    without = ["" if place in fences else line for place, line in enumerate(lines)]
    with pytest.raises(Fault, match="an answer may overwrite the one"):
        is_right(replace(built, ptx="\n".join(without)), None)
    consumer, _, mma = fences
    for place in (consumer, mma):
        assert is_caught(built, [*lines[:place], "", *lines[place + 1 :]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".multicast::cluster::all", ""),  # the second block never hears
        ("@%p{n} clusterlaunchcontrol", "clusterlaunchcontrol"),  # both blocks ask
    ],
)
def test_what_makes_it_the_cluster_s(old: str, new: str) -> None:
    built = in_pairs()
    pattern = re.escape(old).replace(r"\{n\}", r"\d+") + ("" if "@" not in old else r"(?=\.try_cancel)")
    changed = re.sub(pattern, new, built.ptx)
    assert changed != built.ptx
    assert is_caught(built, changed.split("\n"))


@pytest.mark.parametrize("build_of", [alone, in_pairs])
def test_the_verifier_misses_each_piece_too(build_of: Callable[[], Build]) -> None:
    program = build_of().program
    assert not list(program_violations(program))
    (walk,) = (ring for ring in program.rings if ring.heard_by)
    for arrivals in (walk.arrivals - 1, walk.arrivals + 1):
        rings = tuple(replace(ring, arrivals=arrivals) if ring is walk else ring for ring in program.rings)
        assert list(program_violations(replace(program, rings=rings)))
    for number, role in enumerate(program.roles):
        (at,) = (n for n, op in enumerate(role.body) if isinstance(op, warp.Loop))
        loop = role.body[at]
        assert isinstance(loop, warp.Loop)
        for place, op in enumerate(loop.body):
            answers = (
                isinstance(op, warp.RingWait | warp.RingRelease | warp.RingAcquire) and op.cursor.ring == walk.name
            )
            fences = isinstance(op, warp.ProxyFence) and isinstance(loop.body[place - 1], warp.Let)
            if answers or fences or isinstance(op, warp.TryCancel):
                less = replace(loop, body=(*loop.body[:place], *loop.body[place + 1 :]))
                changed = replace(role, body=(*role.body[:at], less, *role.body[at + 1 :]))
                roles = (*program.roles[:number], changed, *program.roles[number + 1 :])
                assert list(program_violations(replace(program, roles=roles))), (role.name, op)


# ---- which one -------------------------------------------------------------------------------------------------------


def test_the_default_and_the_command_line() -> None:
    by, chosen, _ = decided(alone())
    assert (by, chosen) == ("the compiler", "launch control")
    asked = made(KERNEL, SMALL, tile_scheduler="launch-control")
    assert decided(asked)[:2] == ("the command line", "launch control") and asked.ptx == alone().ptx
    static = made(KERNEL, SMALL, tile_scheduler="static")
    assert decided(static) == ("the command line", "static", "--tile-scheduler static")
    assert static.manifest.grid == (AT_ONCE, 1, 1) and not asks(static)
    assert is_right(static, None, 1)


def test_the_model_shares_tiles_out_evenly() -> None:
    """As with a fixed stride: it knows of no block that is slower."""
    defines = (("M", 512), ("N", 768), ("K", 256))
    source = SourceFile("gemm.tl", (SAMPLES / "gemm.tl").read_text(encoding="utf-8"))
    found = []
    for scheduler in TILE_SCHEDULERS:
        options = CompileOptions(target="sm_100a", defines=defines, tile_scheduler=scheduler)
        (report,) = build_reports(build_library(source, options, Observer()))
        found.append((report.ctas, report.by_levels, report.by_schedule))
    assert found[0] == found[1] == found[2]


def test_another_target_has_a_fixed_stride() -> None:
    built = made(PLAIN, {"trips": 1}, target="sm_90a", tile_scheduler="launch-control")
    assert decided(built) == ("the compiler", "static", "sm_90a has no cluster launch control")
    assert built.manifest.grid == (AT_ONCE, 1, 1)


def test_blocks_that_may_wait_for_others_keep_their_order(tmp_path: Path) -> None:
    text = PLAIN.read_text(encoding="utf-8")
    loop = "        T.clear(C_l)\n        found = T.alloc_var('int32')\n        found = 0\n        while found < 1:\n"
    path = tmp_path / "waits.tl"
    path.write_text(text.replace("        T.clear(C_l)\n", f"{loop}            found = found + 1\n"), encoding="utf-8")
    built = made(path, {"trips": 1})
    assert decided(built)[1:] == ("static", "blocks may wait for other blocks, which must already run")


def test_what_roles_run(golden: Callable[[str, str, str], None]) -> None:
    golden("warp", "handed_out", show_program(in_pairs().program))
