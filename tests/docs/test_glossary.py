"""The glossary's terms have a sentence and a source and are in use; what was said in their place is not, in prose."""

from __future__ import annotations

import re

from fenced import BLOCK, ROOT, pages

from tilec.driver import terms
from tilec.support.resources import target_names
from tilec.target.table import load_target

GLOSSARY = "docs/glossary.md"
ENTRY = re.compile(r"^\* \*\*(?P<term>[^*]+)\*\* – (?P<sentence>.+?[.:)]) \*(?P<source>.+)\.\*$")
INSTEAD = {
    r"trips?(?! counts?\b)": "iteration",
    r"residence": "occupancy",
    r"handed[ -]out": "cluster launch control",
    r"overlays?": "reuse",
    r"own cop(?:y|ies)": "privatise",
    r"teams?": "role",
    r"inflight": "scoreboard",
    r"wholes": "if-conversion",
    r"steering": "control slice",
    r"unmasked": "mask elimination",
    r"never[ -]set": "uninitialised read",
    r"wish(?:es)?": "scheduling hint",
    r"meetings?": "barrier, rendezvous",
    r"strips": "footprint",
}
"""Home-made words that prose has no other use for, and the field's."""


def entries() -> list[str]:
    return [line for line in (ROOT / GLOSSARY).read_text(encoding="utf-8").splitlines() if line.startswith("*")]


def prose(page: str) -> str:
    """Without fenced blocks, code and the rows of tables, which show what commands print."""
    text = re.sub(r"`[^`\n]+`", "", BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8")))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def test_each_term_has_a_sentence_and_a_source() -> None:
    assert [line for line in entries() if not ENTRY.match(line)] == []
    terms = [found["term"] for line in entries() if (found := ENTRY.match(line))]
    assert len(terms) > 40 and len(set(terms)) == len(terms)


def test_each_term_is_in_use() -> None:
    """On another page, in the compiler's own text, or in the file of a machine."""
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in pages() if page != GLOSSARY]
    texts += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tilec").rglob("*.py"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "targets").glob("*.toml"))]
    together = re.sub(r"[\s_-]+", " ", "\n".join(texts)).lower()
    terms = [re.sub(r"[_-]", " ", found["term"].lower()) for line in entries() if (found := ENTRY.match(line))]
    assert [term for term in terms if re.sub(r"(?:ing|es|s|e)$", "", term) not in together] == []


def test_units_and_pools_of_every_machine_have_their_line() -> None:
    said = {found["term"]: found["sentence"] for line in entries() if (found := ENTRY.match(line))}
    for name, what in {**terms.describe_slots(), **terms.POOLS}.items():
        assert said[name] == f"{what[0].upper()}{what[1:]}."
    pools = {pool.name for target in target_names() for pool in load_target(target).pools}
    assert pools == terms.POOLS.keys()


def test_prose_uses_the_terms() -> None:
    texts = {page: prose(page) for page in pages() if page != GLOSSARY}
    found = [
        (page, m[0], now)
        for page, text in texts.items()
        for old, now in INSTEAD.items()
        for m in re.finditer(rf"\b{old}\b", text, re.IGNORECASE)
    ]
    assert found == []
