"""`tilec tune --engine ray`: a cluster of its own, of which a node is lost; and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import SAMPLES, tilec
from ray.cluster_utils import Cluster

import tilec as package
from tilec.cli.commands import tune_view
from tilec.tune import engines

pytestmark = pytest.mark.weekly

MATMUL = SAMPLES / "alcop" / "matmul.tl"
SPACE = "[constants]\nblock_M = [64, 128]\nblock_N = [64, 128]\nnum_stages = [2, 3, 4]\n"
SEARCH = ("tune", "k.tl", "--space", "s.toml", "--target", "sm_80", "--trials", "10")
NOBODY, STRANGER = "no-scheduler", "wrong-worker"
ROOM = 80 * 2**20  # of a node's object store, in bytes: about the least that Ray takes


@pytest.fixture(autouse=True)
def _kernel(_elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("k.tl").write_text(MATMUL.read_text(encoding="utf-8"), encoding="utf-8")
    Path("s.toml").write_text(SPACE)
    monkeypatch.setenv("PYTHONPATH", str(Path(package.__file__).parents[1]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@contextmanager
def cluster(*processors: int) -> Iterator[tuple[Cluster, list[Any]]]:
    """One on this machine: a head that works for nobody, and a node for each number."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": ROOM})
    try:
        yield made, [made.add_node(num_cpus=count, object_store_memory=ROOM) for count in processors]
    finally:
        made.shutdown()


def test_a_node_that_is_lost_costs_no_trial(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with cluster(1, 1) as (made, (first, _)):
        found, seen = tune_view.SearchWatcher.found, list[object]()

        def and_lose(*arguments: Any) -> None:
            seen.append(arguments)
            if len(seen) == 2:
                made.remove_node(first, allow_graceful=False)
            found(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(tune_view.SearchWatcher, "found", and_lose)
            assert tilec(*SEARCH, "--engine", "ray", "--scheduler", made.address) == 0
    with_ray, best = capfd.readouterr().out, Path("k.tuned.json").read_bytes()
    assert len(seen) == 10
    assert "10 of 12 variants tried" in with_ray and "refused" not in with_ray

    # The same as in processes of this machine.
    Path("k.tune.sqlite").unlink()
    assert tilec(*SEARCH, "-j2") == 0
    assert with_ray.endswith(capfd.readouterr().out), "before which Ray itself tells of the loss"
    assert Path("k.tuned.json").read_bytes() == best


def test_nodes_that_cannot_work(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with cluster() as (made, _):
        assert tilec(*SEARCH, "--engine", "ray", "--scheduler", made.address) == 1
        said = capfd.readouterr().err
        assert f"error[{NOBODY}]: no node of {made.address} has processors" in said
        assert f"ray start --address={made.address}" in said

        made.add_node(num_cpus=1, object_store_memory=ROOM)
        monkeypatch.setattr(engines, "__version__", "0.0.9")
        assert tilec(*SEARCH, "--engine", "ray", "--scheduler", made.address) == 1
        said = capfd.readouterr().err
        assert f"error[{STRANGER}]" in said and f"has tilec {package.__version__}, here it is 0.0.9" in said
    assert not Path("k.tuned.json").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:nowhere"])  # port 1 is nobody's
def test_nobody_answers(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*SEARCH, "--engine", "ray", "--scheduler", address) == 1
    said = capfd.readouterr().err
    assert f"error[{NOBODY}]: no Ray cluster answers at {address}" in said
    assert "start one with `ray start --head`" in said
    assert "Traceback" not in said


def test_ray_is_optional(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert tilec(*SEARCH, "--engine", "ray", "--scheduler", "127.0.0.1:1") == 1
    assert "pip install '.[ray]'" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [("--engine", "ray"), ("--scheduler", "auto"), ("--scheduler", "host:6379")])
def test_usage(arguments: tuple[str, ...]) -> None:
    assert tilec(*SEARCH, *arguments) == 2
