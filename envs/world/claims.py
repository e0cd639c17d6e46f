"""Check of a claim in free English against a fact."""

from __future__ import annotations

from common.answers import abstains, normalize_answer
from envs.world.facts import Hop
from envs.world.query_reader import Reader
from envs.world.teacher import UNKNOWN

_NEGATIONS = frozenset(("not", "no", "never", "nor", "neither", "isnt", "wasnt"))


def is_true(reader: Reader, claim: str, hop: Hop) -> bool:
    """Whether a claim is the hop's value by name, or a sentence that states this fact and no other.

    Of a fact that no passage states, whether it says that it is unknown.
    """
    plain = normalize_answer(claim)
    if hop.absent:
        return plain == UNKNOWN or abstains(claim)
    if plain in map(normalize_answer, hop.value.names()):
        return True
    reading, pair = reader.read(claim), {hop.subject.id, hop.value.id}
    asked = {(subject, relation) for subject, relation in reading.asked if subject != hop.value.id}
    return (
        asked == {(hop.subject.id, hop.relation)}
        and any(hop.value.id in names for names in reading.named)
        and all(names & pair for names in reading.named)
        and not _NEGATIONS & set(plain.split())
    )
