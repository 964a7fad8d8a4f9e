"""Puts the kernel language's parser tables into the wheel: making them takes longer than compiling a kernel.

They hold for one release of Python; with others, tilec makes its own and keeps them in the user's cache.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TablesHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from tilec.frontend.syntax.tables import write_tables
        finally:
            sys.path.pop(0)
        self.folder = tempfile.TemporaryDirectory()
        path = write_tables(Path(self.folder.name))
        build_data["force_include"][str(path)] = f"tilec/_data/tables/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
