"""Blocks that wait for each other, or for the grid before theirs: right on hostile machines, and wrong without."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.host import runtime
from tilec.ir.manifest import extract_from_cubin, from_json, to_json
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

PATH = HERE / "grid.tl"


def is_right(made: Build, ptx: str, adversary: int | None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    expected = found.copy()
    _, given, _ = emulate.prepare_launch(made.manifest, found)
    launch(
        ptx,
        made.manifest.entry,
        made.manifest.blocks({}),
        made.manifest.block,
        emulate.build_launch_arguments(made.manifest, given),
        cluster=made.manifest.cluster,
        dynamic_smem=made.manifest.dynamic_smem,
        adversary=adversary,
    )
    emulate.run_reference(made.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("entry", ["totals", "rounds"])
def test_the_whole_grid_meets(entry: str, target: str) -> None:
    _, made = built(PATH, target, entry=entry)
    (manifest,) = extract_from_cubin(made.cubin)
    assert manifest.attributes == ("cooperative",)
    assert [t.role for t in manifest.tensors if t.name == "grid_barrier"] == ["zeroed"]
    assert all(is_right(made, made.ptx, adversary) for adversary in (None, 1, 2, 3))


@pytest.mark.parametrize("pattern", [r"atom\.global\.acq_rel", r"ld\.acquire\.gpu", r"setp\.ge\.s32"])
def test_each_part_of_the_meeting_is_needed(pattern: str) -> None:
    _, made = built(PATH, "sm_90a", entry="rounds")
    lines = made.ptx.split("\n")
    for place in (n for n, line in enumerate(lines) if re.search(pattern, line)):
        mutant = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        with pytest.raises(Fault):
            assert not all(is_right(made, mutant, adversary) for adversary in (None, 1, 2))
            raise Fault("deadlock", "wrong numbers are as good")


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_parts_of_a_product_are_added_up_after_a_meeting(target: str) -> None:
    path = HERE / "split_k_meeting.tl"
    text = path.read_text(encoding="utf-8")
    if target == "sm_80":  # which has no dependent launches
        text = text.replace("        T.pdl_sync()\n", "").replace("        T.pdl_trigger()\n", "")
    options = CompileOptions(target=target)
    made = build_kernel(SourceFile(path.name, text), options, Observer())
    assert len(made.program.roles) == (2 if target == "sm_90a" else 1)
    assert made.manifest.attributes == ("cooperative", "dependent")[: 2 if target == "sm_90a" else 1]
    assert all(is_right(made, made.ptx, adversary) for adversary in (None, 1, 2))


def test_what_the_runtime_asks_of_a_launch() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    _, made = built(PATH, "sm_90a", entry="ranks")
    manifest = dataclasses.replace(made.manifest, attributes=("cooperative", "dependent"))
    cluster, cooperative, programmatic = runtime.build_launch_attributes(manifest)
    known = driver.CUlaunchAttributeID
    assert cluster.id == known.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert (cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z) == (2, 2, 1)
    assert cooperative.id == known.CU_LAUNCH_ATTRIBUTE_COOPERATIVE and cooperative.value.cooperative == 1
    assert programmatic.id == known.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert programmatic.value.programmaticStreamSerializationAllowed == 1


def test_a_dependent_launch() -> None:
    _, made = built(PATH, "sm_90a", entry="chained")
    (manifest,) = extract_from_cubin(made.cubin)
    assert manifest.attributes == ("dependent",)
    assert from_json(to_json(manifest)) == manifest
    assert json.loads(to_json(manifest))["schema"] == 3
    wait, trigger = made.ptx.index("griddepcontrol.wait"), made.ptx.index("griddepcontrol.launch_dependents")
    assert wait < made.ptx.index("ld.global") < trigger < made.ptx.index("st.global")
    assert is_right(made, made.ptx, 1)


def test_the_place_of_a_block_in_its_cluster() -> None:
    _, made = built(PATH, "sm_90a", entry="ranks")
    assert made.manifest.cluster == (2, 2, 1)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, found)
    x, y = np.meshgrid(np.arange(4), np.arange(2))
    wanted = np.stack([x % 2 + 2 * (y % 2), np.full_like(x, 4), x, y], axis=-1).reshape(8, 4)
    np.testing.assert_array_equal(found.tensors["A"], wanted)
    expected = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.run_reference(made.kernel, expected)
    np.testing.assert_array_equal(expected.tensors["A"], wanted)


def outputs(entry: str, adversary: int | None) -> dict[str, np.ndarray]:
    """The tensors after a run, the inputs among them."""
    _, made = built(PATH, "sm_90a", entry=entry)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
    return dict(found.tensors)


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_tiles_go_to_other_blocks_of_the_cluster(adversary: int | None) -> None:
    found = outputs("neighbours", adversary)
    rows = np.roll(found["A"].reshape(4, 2, -1), 1, axis=0)
    wanted = rows.copy()
    wanted.reshape(8, -1)[::2] = 2 * rows[:, 0]
    np.testing.assert_array_equal(found["B"], wanted.reshape(8, -1))


@pytest.mark.parametrize("adversary", [None, 1])
def test_several_blocks_get_what_the_first_asks_for(adversary: int | None) -> None:
    found = outputs("masked", adversary)
    np.testing.assert_array_equal(found["B"].reshape(4, 16, -1), found["A"].reshape(4, 16, -1)[[0, 1, 1, 3]])


@pytest.mark.parametrize("place", range(4))
def test_a_cluster_meets_before_its_tiles_are_used(place: int) -> None:
    _, made = built(PATH, "sm_90a", entry="neighbours")
    lines = made.ptx.split("\n")
    meetings = [n for n, line in enumerate(lines) if "barrier.cluster" in line]
    assert len(meetings) == 8
    # Those before the first tile is sent say that all have begun, of which the emulator knows nothing: test_clusters.
    pair = (meetings[4:6], meetings[6:])[place // 2]
    mutant = "\n".join(line for n, line in enumerate(lines) if n not in pair)
    adversaries = (None, 1, 2, 3) if place % 2 else (4, 5, 6, 7)
    with pytest.raises(Fault):
        for adversary in adversaries:
            is_right(made, mutant, adversary)
