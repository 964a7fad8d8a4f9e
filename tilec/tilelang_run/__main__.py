"""`python -m tilec.tilelang_run FILE.py [arguments]`: run a TileLang script without TileLang, and without a GPU."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, TracebackType

from tilec.support.diagnostics import CompileError
from tilec.support.resources import target_names
from tilec.tilelang_run import kernels, modules


def run_command() -> int:
    """Read the command line, run the TileLang script that it names, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tilec.tilelang_run",
        description="Run a TileLang script: tilec compiles its kernels and runs them.",
    )
    parser.add_argument("--target", default="sm_90a", help="machine to compile for (default: sm_90a)")
    parser.add_argument(
        "--device",
        choices=("emulator", "cuda"),
        default="emulator",
        help="run the kernels on the CPU, or on the GPU here",
    )
    parser.add_argument("script", type=Path, metavar="FILE.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script itself is given")
    given = parser.parse_args()
    if given.target not in target_names() and not given.target.endswith(".toml"):
        parser.error(f"there is no target {given.target}; there are {', '.join(target_names())}")
    if not given.script.is_file():
        parser.error(f"there is no file {given.script}")
    return run_script(given.script, given.arguments, kernels.Machine(given.target, given.device))


def run_script(path: Path, arguments: Sequence[str], machine: kernels.Machine) -> int:
    """Run a script as `__main__` with tilec serving `tilelang`, print an uncaught error, and return the exit code. With
    the emulator, torch keeps its tensors on the CPU and reports a GPU of the target.
    """
    kernels.MACHINE.target, kernels.MACHINE.device = machine.target, machine.device
    text = path.read_text(encoding="utf-8")
    try:
        code = compile(text, str(path), "exec")
        with ExitStack() as stack:
            stack.enter_context(_be_main_program(path, arguments))
            stack.enter_context(modules.serve_modules())
            if machine.device == "emulator" and re.search(r"\btorch\b", text) and (torch := _import_torch()):
                from tilec.tilelang_run.torch_without_gpu import answer_for_gpu

                stack.enter_context(answer_for_gpu(torch, modules.find_capability(machine.target)))
            main = ModuleType("__main__")
            main.__file__ = str(path)
            sys.modules["__main__"] = main
            exec(code, main.__dict__)
    except SystemExit as ended:
        return _read_exit_code(ended)
    except CompileError as error:
        print(error, file=sys.stderr)
        _print_call(error.__traceback__, path)
        return 1
    except ModuleNotFoundError as error:
        _print_error(error, path)
        if error.name == "torch":
            print("tilec: the script needs torch; the build for the CPU is enough", file=sys.stderr)
        elif error.name is not None and error.name.startswith("tilelang"):
            print(f"tilec: {error.name} is not among the modules that tilec serves", file=sys.stderr)
        return 1
    except Exception as error:
        _print_error(error, path)
        return 1
    return 0


@contextmanager
def _be_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as for the script for the `with`, and restore them and `__main__` after it."""
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv, sys.path[0:1] = [str(path), *arguments], [str(path.parent.resolve())]
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def _import_torch() -> ModuleType | None:
    """Import and return torch, or return None if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _read_exit_code(ended: SystemExit) -> int:
    """Return the exit code of a `SystemExit`; print a code that is no integer, and return 1."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


def _skip_to_script(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """Return the part of a traceback that begins at the script's first frame, or None if it has none."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    return trace


def _print_error(error: BaseException, path: Path) -> None:
    """Print an uncaught error's traceback without the frames before the script's."""
    traceback.print_exception(error.with_traceback(_skip_to_script(error.__traceback__, path) or error.__traceback__))


def _print_call(trace: TracebackType | None, path: Path) -> None:
    """Print, on standard error, the last line of the script in a traceback: where it asked for the kernel."""
    own = [frame for frame in traceback.extract_tb(_skip_to_script(trace, path)) if frame.filename == str(path)]
    if own:
        print(f"the kernel was asked for at {own[-1].filename}:{own[-1].lineno}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_command())
