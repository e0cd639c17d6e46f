"""The English of the rule teacher: relations of knowledge bases as questions, and thoughts around them."""

from __future__ import annotations

import re
from random import Random

_PERSON = ("Who is the {r} of {x}?", "Who was the {r} of {x}?")
_THING = ("What is the {r} of {x}?",)
_PEOPLE = frozenset(
    ("father", "mother", "producer", "screenwriter", "publisher", "occupant", "participant", "developer")
)
# The properties of Wikidata that MuSiQue and 2WikiMultiHopQA use most, which no pattern words well.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "director": ("Who is the director of {x}?", "Who directed {x}?"),
    "composer": ("Who is the composer of {x}?", "Who composed the music of {x}?"),
    "performer": ("Who is the performer of {x}?", "Who performed {x}?"),
    "author": ("Who is the author of {x}?", "Who wrote {x}?"),
    "creator": ("Who is the creator of {x}?", "Who created {x}?"),
    "spouse": ("Who is the spouse of {x}?", "Who was {x} married to?"),
    "child": ("Who is a child of {x}?", "Who is the son or daughter of {x}?"),
    "sibling": ("Who is a sibling of {x}?", "Who is the brother or sister of {x}?"),
    "founded by": ("Who founded {x}?", "By whom was {x} founded?"),
    "owned by": ("Who owns {x}?", "What is the owner of {x}?"),
    "operator": ("Who operates {x}?", "What is the operator of {x}?"),
    "manufacturer": ("Who manufactures {x}?", "Which company makes {x}?"),
    "distributed by": ("Who distributed {x}?", "What is the distributor of {x}?"),
    "cast member": ("Who is a cast member of {x}?", "Who starred in {x}?"),
    "date of birth": ("When was {x} born?", "What is the date of birth of {x}?"),
    "date of death": ("When did {x} die?", "What is the date of death of {x}?"),
    "place of birth": ("Where was {x} born?", "What is the place of birth of {x}?"),
    "place of death": ("Where did {x} die?", "What is the place of death of {x}?"),
    "place of burial": ("Where is {x} buried?", "What is the place of burial of {x}?"),
    "cause of death": ("What did {x} die of?", "What is the cause of death of {x}?"),
    "publication date": ("When was {x} released?", "When did {x} come out?"),
    "inception": ("When was {x} founded?", "When was {x} established?"),
    "country": ("In which country is {x}?", "Which country is {x} from?"),
    "country of citizenship": ("What is the nationality of {x}?", "Of which country is {x} a citizen?"),
    "country of origin": ("Which country is {x} from?", "What is the country of origin of {x}?"),
    "educated at": ("Where was {x} educated?", "Where did {x} study?"),
    "employer": ("Who is the employer of {x}?", "Who did {x} work for?"),
    "award received": ("Which award did {x} receive?", "What award was {x} given?"),
    "headquarters location": ("Where are the headquarters of {x}?", "In which city is {x} based?"),
    "location": ("Where is {x} located?", "What is the location of {x}?"),
    "location of formation": ("Where was {x} formed?", "In which place was {x} founded?"),
    "located in the administrative territorial entity": (
        "In which administrative area is {x}?",
        "Which county, state or region is {x} located in?",
    ),
    "contains administrative territorial entity": ("Which place lies within {x}?", "Which area is part of {x}?"),
    "shares border with": ("What does {x} share a border with?", "What borders {x}?"),
    "member of sports team": ("Which sports team does {x} play for?", "What team is {x} a member of?"),
    "member of political party": ("Which political party is {x} a member of?", "To which party does {x} belong?"),
    "member of": ("What is {x} a member of?", "Which group does {x} belong to?"),
    "part of": ("What is {x} part of?",),
    "part of the series": ("Which series is {x} part of?",),
    "named after": ("What is {x} named after?", "Who or what gave {x} its name?"),
    "capital of": ("What is {x} the capital of?",),
    "licensed to broadcast to": ("Which city is {x} licensed to broadcast to?",),
    "instance of": ("What kind of thing is {x}?",),
    "follows": ("What comes before {x}?",),
    "followed by": ("What comes after {x}?",),
}  # fmt: skip

FIRST = (
    "To answer this, I first need to know: {query}",
    "I start with a part of the question: {query}",
    "The first thing to find out is this: {query}",
    "Let me begin with what I need first: {query}",
)
NEXT = (
    "Next I need to find out: {query}",
    "Having found {known}, I can ask: {query}",
    "I know one part now, {known}. The next question is: {query}",
    "With {known} known, I go on: {query}",
)
READ = (
    "The passages tell it: {answer}.",
    "I can read the answer in the passages: {answer}.",
    "According to the passages, it is {answer}.",
    "One passage answers this: {answer}.",
)
CHAIN = (
    "That was the last part, so the answer is {answer}.",
    "Now every part is known, and the answer is {answer}.",
    "All that was asked for is found: {answer}.",
)
COMPARED = (
    "I have found {facts}. So the answer is {answer}.",
    "Putting {facts} together, the answer is {answer}.",
    "Now I can compare {facts}: the answer is {answer}.",
)


def natural(text: str, rng: Random) -> str:
    """A sub-question in full: `X >> relation` is worded, and a question begins and ends as one should."""
    subject, arrow, relation = (part.strip() for part in text.rpartition(">>"))
    if arrow and subject:
        wordings = QUESTIONS.get(relation) or (_PERSON if relation in _PEOPLE else _THING)
        return rng.choice(wordings).format(x=subject, r=relation)
    text = re.sub(r"\s+([?.,;:])", r"\1", " ".join(text.split())).rstrip("?. ")
    return f"{text[:1].upper()}{text[1:]}?"


def listed(facts: list[str]) -> str:
    """`a, b and c`."""
    return facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"
