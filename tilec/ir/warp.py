"""Warp IR: the operations of each warp role, in issue order, with every wait, arrival and fence in place.

A program has one role (all warps run the same code) or several (warp specialisation). Operations are still tile-sized,
but each is one hardware mechanism: a TMA load, a wgmma group, an elementwise sweep in a known layout.

Tiles that have several versions in flight are addressed through *cursors*: a position in a ring, held in registers,
advanced once per logical iteration. Two statements of one role that work on different iterations have different
cursors.
"""

from __future__ import annotations

from tilec.ir.warp_nodes.closed import *  # noqa: F403  (this module is the names of those files)
from tilec.ir.warp_nodes.memory import *  # noqa: F403
from tilec.ir.warp_nodes.operations import *  # noqa: F403
from tilec.ir.warp_nodes.program import *  # noqa: F403
from tilec.ir.warp_nodes.waits import *  # noqa: F403
from tilec.ir.warp_nodes.walk import *  # noqa: F403
