"""A schedule given by hand may have a tile that nobody reads written in any order."""

from __future__ import annotations

import pytest
from harness import HERE, agrees


@pytest.mark.parametrize("trips", [1, 2, 5])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_its_writes_may_change_places(target: str, trips: int) -> None:
    agrees(HERE / "written_never_read.tl", target, strict=False, trips=trips)
