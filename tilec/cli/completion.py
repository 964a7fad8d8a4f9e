"""`tilec completion SHELL`, and the answers to its script: click's completion over our table of commands, and over
options and arguments whose values are known words."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from tilec.cli.names import COMMANDS, find_command

_VARIABLE = "_TILEC_COMPLETE"
"""Set by the script to ask for completions: `bash_complete`. `cli` looks for it."""


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and their values.

    bash: eval "$(tilec completion bash)" in ~/.bashrc. zsh: the same with zsh, in ~/.zshrc. fish: tilec completion fish
    > ~/.config/fish/completions/tilec.fish
    """
    print(_make_completer(shell).source())


def print_completions(request: str) -> int:
    """Print completions in the format of the shell that `request` names; return 1 if it is unknown, else 0."""
    shell = request.partition("_")[0]
    if get_completion_class(shell) is None:
        return 1
    print(_make_completer(shell).complete())
    return 0


class _CommandCompletion(ShellComplete):
    """Completes the words after a command with that command's options."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the commands, options and values that begin with the word, files first; any file if there are none."""
        self.cli, rest = find_command(args)
        items = super().get_completions(rest, incomplete)
        if self.name == "fish":
            # Its script splits items at commas.
            items = [item for item in items if "," not in item.value]
        if not items and not incomplete.startswith("-"):
            items = [CompletionItem(incomplete, type="file")]
        position = len(args)
        names = [words for words in map(str.split, COMMANDS) if words[:position] == args and len(words) > position]
        following = dict.fromkeys(words[position] for words in names if words[position].startswith(incomplete))
        # Files first: bash's script drops items before a file, and completes files only if nothing else is left.
        return sorted([*map(CompletionItem, following), *items], key=lambda item: item.type != "file")


def _make_completer(shell: str) -> ShellComplete:
    """Return click's completer for this shell, extended to complete the words after each command."""
    base = get_completion_class(shell)
    assert base is not None, shell

    completer: type[ShellComplete] = type(base.__name__, (_CommandCompletion, base), {})
    return completer(click.Command("tilec"), {}, "tilec", _VARIABLE)


WordCompleter = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_one(words: Callable[[], Iterable[str]]) -> WordCompleter:
    """Return a completion function for a value that is one of these words."""
    return lambda _context, _parameter, begun: [word for word in words() if word.startswith(begun)]


def complete_several(words: Callable[[], Iterable[str]]) -> WordCompleter:
    """Return a completion function for a comma-separated list of these words, each once."""

    def propose_words(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        """Return the list so far with each word appended that it lacks and that begins as its last word."""
        before, comma, last = begun.rpartition(",")
        present = before.split(",")
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last) and word not in present]

    return propose_words


def list_codes() -> Iterable[str]:
    """Return the codes of all errors and warnings, sorted, for shell completion."""
    from tilec.driver.explanations import EXPLANATIONS

    return sorted(EXPLANATIONS)
