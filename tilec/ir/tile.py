"""Tile IR: one kernel as whole-tile operations on global, shared and fragment buffers.

Names are resolved, every expression has a type, and each buffer and variable name is unique within the kernel. Tile
IR is never changed in place: passes make new nodes, and keep the ones they do not touch.
"""

from __future__ import annotations

from tilec.ir.tile_nodes.expressions import *  # noqa: F403  (this module has the names of those files)
from tilec.ir.tile_nodes.kernel import *  # noqa: F403
from tilec.ir.tile_nodes.statements import *  # noqa: F403
from tilec.ir.tile_nodes.walks import *  # noqa: F403
