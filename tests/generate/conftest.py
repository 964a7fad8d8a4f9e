"""Drawn kernels are verified behind every pass, warp programs too."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _verified_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_VERIFY", "all")
