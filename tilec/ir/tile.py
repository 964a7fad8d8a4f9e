"""Tile IR: one kernel as whole-tile operations on global, shared and fragment buffers.

Names are resolved, every expression has a type, and each buffer and variable name is unique within the kernel. Tile
IR is never changed in place: passes make new nodes, and keep the ones they do not touch.
"""

from __future__ import annotations

from tilec.ir.tile_nodes.expressions import (
    BIT_COUNTS as BIT_COUNTS,
    BLOCK_WIDE as BLOCK_WIDE,
    COMPARISONS as COMPARISONS,
    IN_REGISTERS as IN_REGISTERS,
    INTEGER_CALLS as INTEGER_CALLS,
    ONCE_PREFIX as ONCE_PREFIX,
    PHASE_DONE as PHASE_DONE,
    THREAD as THREAD,
    WARP_WIDE as WARP_WIDE,
    WARPGROUP as WARPGROUP,
    Binary as Binary,
    BinaryOp as BinaryOp,
    Buffer as Buffer,
    Call as Call,
    Cast as Cast,
    Const as Const,
    Expr as Expr,
    Extent as Extent,
    Load as Load,
    Ptx as Ptx,
    Scope as Scope,
    Select as Select,
    Unary as Unary,
    UnaryOp as UnaryOp,
    Var as Var,
    extent_expr as extent_expr,
    int32_const as int32_const,
)
from tilec.ir.tile_nodes.kernel import (
    CLUSTER_RANK as CLUSTER_RANK,
    NO_CLUSTER as NO_CLUSTER,
    Cluster as Cluster,
    Kernel as Kernel,
    KernelOption as KernelOption,
    LayoutAnnotation as LayoutAnnotation,
    Raster as Raster,
    Subtile as Subtile,
)
from tilec.ir.tile_nodes.statements import (
    PRINT_OUTPUT as PRINT_OUTPUT,
    Atomic as Atomic,
    Attr as Attr,
    Bind as Bind,
    Break as Break,
    For as For,
    If as If,
    LoopKind as LoopKind,
    LoopLayout as LoopLayout,
    Order as Order,
    Parallel as Parallel,
    Placement as Placement,
    Print as Print,
    Region as Region,
    SchedulingHints as SchedulingHints,
    Stmt as Stmt,
    Store as Store,
    TileOp as TileOp,
    While as While,
)
from tilec.ir.tile_nodes.walks import (
    declared_variables as declared_variables,
    direct_operands as direct_operands,
    is_true as is_true,
    nested_bodies as nested_bodies,
    substitute_variables as substitute_variables,
    walk_expr as walk_expr,
    walk_statements as walk_statements,
)
