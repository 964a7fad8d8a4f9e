"""The tables of the front end: each kind of syntax has its reader, and each name that has one is known as such."""

from __future__ import annotations

from typing import get_args

from tilec.frontend.sema.dispatch import COMPILE_TIME_DISPATCH, KERNEL_DISPATCH
from tilec.frontend.sema.loops import loop_headers
from tilec.frontend.sema.statements import allocations
from tilec.frontend.sema.vocabulary import ALLOCATION_NAMES, LOOP_NAMES, list_supported_names
from tilec.frontend.syntax import ast
from tilec.ops.functions.python import BUILTIN_NAMES
from tilec.ops.functions.signatures import AT_DATA


def test_every_kind_of_expression_has_a_reader() -> None:
    assert COMPILE_TIME_DISPATCH.expressions.keys() == KERNEL_DISPATCH.expressions.keys() == set(get_args(ast.Expr))


def test_every_kind_of_statement_has_a_reader() -> None:
    assert KERNEL_DISPATCH.statements.keys() == set(get_args(ast.Stmt))
    assert not COMPILE_TIME_DISPATCH.statements, (
        "functions that run at compile time have their own reading of statements"
    )


def test_every_name_with_a_reader_is_a_supported_one() -> None:
    known = {*list_supported_names(), *BUILTIN_NAMES, *AT_DATA}
    read = {*KERNEL_DISPATCH.values, *KERNEL_DISPATCH.actions}
    methods = {name for name in read if name.rpartition(".")[0] in known}  # of a supported name, as T.WSSync's
    assert {name for name in read - known - methods if name.startswith("T.")} == set()
    assert COMPILE_TIME_DISPATCH.values.keys() <= KERNEL_DISPATCH.values.keys()


def test_allocations_and_loops_are_the_names_that_are_said_to_be() -> None:
    assert {*allocations.TILE_SIGNATURES, *allocations.OTHER_ALLOCATIONS} == set(ALLOCATION_NAMES)
    assert {
        *loop_headers.SEQUENTIAL_LOOPS,
        *loop_headers.NEST_SIGNATURES,
        loop_headers.PERSISTENT_SIGNATURE.name,
    } == set(LOOP_NAMES)
