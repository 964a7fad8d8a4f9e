"""Explanations of words that are no diagnostic codes: units and pools of the machine, terms of schedules and of the
glossary, and names of the kernel language. `tilec explain NAME` prints them."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache

from tilec.frontend.examples.read import find_example
from tilec.frontend.language import format_meaning, format_signature, list_documented_names
from tilec.support import resources

POOLS = {
    "smem": "bytes of shared memory that a block holds at a time",
    "registers": "32-bit registers of a multiprocessor, shared by all threads of its blocks",
    "registers_per_thread": "32-bit registers of one thread",
    "named_barriers": "numbered barriers of a block, at which groups of its warps wait for each other",
    "named_barriers_carried": "named barriers that an iteration leaves to the next one",
    "tmem": "columns of tensor memory that a block holds at a time",
    "tmem_banks": "iterations that may hold banks of tensor memory at a time",
    "mbarriers": "barriers in shared memory, which count arrivals and bytes; 8 bytes each",
}
"""Resources that a schedule holds over a lifetime; target files give their sizes."""

SCHEDULES = {
    "II": "Initiation interval: the cycles from the begin of one iteration of a pipelined loop to the next one's.\n"
    "A loop takes about II cycles times its iterations, so a smaller II is a faster loop. 'tilec schedule' proves it.",
    "MII": "The least initiation interval that the bounds allow: what the busiest unit takes for an iteration,\n"
    "or what a chain of statements takes that depends on itself. No schedule has a smaller II.",
    "stage": "The number of intervals (II) by which a statement starts later than its iteration: floor(start / II).",
    "num_stages": "A parameter of T.Pipelined: the most versions of a tile that a loop may keep. While one is used,\n"
    "loads of later iterations fill the others. tilec chooses how many pay, up to this number.",
    "slot": "A unit of the machine that a statement holds for some cycles, such as tp_gnic_rd or tc_and_mma.",
    "pool": "A resource of limited capacity that values hold while they live, such as shared memory (smem) or "
    "registers.",
    "ring": "The versions of a tile that a pipelined loop fills and reads in turn.",
}
"""Terms that messages and reports use, in one or two lines each."""


@lru_cache(maxsize=1)
def describe_slots() -> dict[str, str]:
    """Return the description of each execution unit in the target files; where machines differ, one for each."""
    machines: dict[str, dict[str, list[str]]] = {}
    for name in resources.target_names():
        for slot, entry in tomllib.loads(resources.target_text(name))["slots"].items():
            machines.setdefault(slot, {}).setdefault(entry["what"], []).append(name)
    described = {}
    for slot, texts in machines.items():
        several = "; ".join(f"on {', '.join(targets)}: {what}" for what, targets in texts.items())
        described[slot] = several if len(texts) > 1 else next(iter(texts))
    return described


@lru_cache(maxsize=1)
def glossary() -> dict[str, str]:
    """Return the terms of docs/glossary.md with the sentence that explains each."""
    entries = re.finditer(r"^\* \*\*([^*]+)\*\* – (.+?[.:)]) \*[^\n]+\.\*$", resources.glossary_text(), re.MULTILINE)
    return {found[1]: found[2].replace("*", "") for found in entries}


def _find_glossary_term(name: str) -> str | None:
    """Return the glossary's term for a word, also as plural or with hyphens or capitals; None if it has none."""
    word = " ".join(re.split(r"[\s_-]+", name.lower()))
    terms = {term.lower().replace("-", " "): term for term in glossary()}
    return terms.get(word) or terms.get(word.removesuffix("s"))


def explain_term(name: str) -> str | None:
    """Return the explanation of a unit, pool, schedule term, language name or glossary term; None for others."""
    if name in describe_slots():
        what = "a unit of a multiprocessor, which a schedule gives to one statement at a time"
        return f"{name}: {what}.\n\n{describe_slots()[name]}"
    if name in POOLS:
        return f"{name}: a pool, which a schedule must not exceed.\n\n{POOLS[name]}"
    if name in SCHEDULES:
        return f"{name}\n\n{SCHEDULES[name]}"
    entry = list_documented_names().get(name) or list_documented_names().get(f"T.{name}")
    if entry is not None:
        shown = entry.signature if isinstance(entry.signature, str) else format_signature(entry.signature)
        found = find_example(*entry.names)
        return f"{shown}\n\n{format_meaning(entry)}" + (f"\n\nExample:\n\n{found.rstrip()}" if found else "")
    if (term := _find_glossary_term(name)) is not None:
        return f"{term}\n\n{glossary()[term]}"
    return None


def list_terms() -> tuple[str, ...]:
    """Return every name that `explain_term` explains, each once."""
    return tuple(dict.fromkeys((*describe_slots(), *POOLS, *SCHEDULES, *list_documented_names(), *glossary())))
