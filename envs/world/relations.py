"""The twelve relations of the world and how they are worded in English.

In all wordings `{x}` is the subject and `{v}` the value. A wording is chosen by number, so the first n of
each tuple are a world with less variety.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("person", "city", "work", "organisation", "country")

# What an entity is called besides its name; it tells namesakes apart, so no type is a cue of a relation below.
TYPES: dict[str, tuple[str, ...]] = {
    "person": (
        "architect", "painter", "chemist", "sailor", "poet", "engineer", "surgeon", "lawyer", "historian", "singer",
        "botanist", "farmer", "astronomer", "dancer", "teacher", "pilot",
    ),
    "city": ("city",),
    "work": ("film", "musical", "documentary", "cartoon"),
    "organisation": ("company",),
    "country": ("country",),
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """A functional relation: every subject has at most one value.

    Attributes:
        subject, object: kinds of entity.
        sentences: how a passage states it. The first relation of a kind opens the passage and may use `{a_type}`, as in
            "an architect", and `{type}`; the others follow it and may use the pronoun `{they}`.
        phrases: nominal, to be put inside a longer question.
        questions: forms of a question for this relation alone.
        same: asks whether `{x}` and `{y}` share the value; empty where it hardly ever is shared.
        cues: words that name the relation in free English, wherever they stand.
        hints: words that name it only where nothing clearer is said.
    """

    name: str
    subject: str
    object: str
    sentences: tuple[str, str, str]
    phrases: tuple[str, str, str]
    questions: tuple[str, str, str]
    same: tuple[str, ...] = ()
    cues: frozenset[str] = frozenset()
    hints: frozenset[str] = frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALL = (
    Relation(
        "birthplace",
        "person",
        "city",
        ("{x} is {a_type} born in {v}.", "{x}, {a_type}, was born in {v}.", "Born in {v}, {x} is {a_type}."),
        ("the birthplace of {x}", "the city where {x} was born", "the city in which {x} was born"),
        ("What is the birthplace of {x}?", "Where was {x} born?", "In which city was {x} born?"),
        ("Do {x} and {y} have the same birthplace?", "Were {x} and {y} born in the same city?"),
        cues=_words("birthplace birth birthcity born native hometown"),
        hints=_words("city where from"),
    ),
    Relation(
        "spouse",
        "person",
        "person",
        ("{they} is married to {v}.", "The spouse of {x} is {v}.", "{they} married {v}."),
        ("the spouse of {x}", "the person married to {x}", "the person who married {x}"),
        ("Who is the spouse of {x}?", "Who is married to {x}?", "Who married {x}?"),
        cues=_words("spouse wife husband married marry marries partner wed wedded"),
    ),
    Relation(
        "employer",
        "person",
        "organisation",
        ("{they} works for {v}.", "The employer of {x} is {v}.", "{they} is employed by {v}."),
        ("the employer of {x}", "the company that employs {x}", "the company where {x} works"),
        ("What is the employer of {x}?", "Which company employs {x}?", "Which company does {x} work for?"),
        ("Do {x} and {y} have the same employer?", "Do {x} and {y} work for the same company?"),
        cues=_words("employer employers employ employs employed employment work works worked working workplace job"),
        hints=_words("company organisation organization firm"),
    ),
    Relation(
        "country",
        "city",
        "country",
        ("{x} is {a_type} in {v}.", "{x} is {a_type} that lies in {v}.", "{x} is {a_type} which belongs to {v}."),
        ("the country of {x}", "the country where {x} lies", "the country that {x} belongs to"),
        ("What is the country of {x}?", "In which country is {x}?", "Which country does {x} belong to?"),
        ("Are {x} and {y} in the same country?", "Do {x} and {y} belong to the same country?"),
        cues=_words("country nation lies lie belong belongs located situated"),
        hints=_words("where state"),
    ),
    Relation(
        "mayor",
        "city",
        "person",
        ("Its mayor is {v}.", "The mayor of {x} is {v}.", "The city elected {v} as its mayor."),
        ("the mayor of {x}", "the person who is mayor of {x}", "the person elected mayor of {x}"),
        ("Who is the mayor of {x}?", "Which person is mayor of {x}?", "Who was elected mayor of {x}?"),
        cues=_words("mayor mayors mayoral elected"),
        hints=_words("runs governs leads leader head"),
    ),
    Relation(
        "director",
        "work",
        "person",
        (
            "{x} is {a_type} directed by {v}.",
            "{x} is {a_type} by the director {v}.",
            "{x} is {a_type} and its director is {v}.",
        ),
        ("the director of {x}", "the person who directed {x}", "the person that directed {x}"),
        ("Who is the director of {x}?", "Who directed {x}?", "Which person directed {x}?"),
        ("Do {x} and {y} have the same director?", "Were {x} and {y} directed by the same person?"),
        cues=_words("director directors directed directs direct directing filmmaker"),
        hints=_words("made"),
    ),
    Relation(
        "composer",
        "work",
        "person",
        ("Its music was composed by {v}.", "The composer of its music is {v}.", "{v} wrote its music."),
        ("the composer of {x}", "the person who composed the music of {x}", "the person who wrote the music of {x}"),
        ("Who is the composer of {x}?", "Who composed the music of {x}?", "Who wrote the music of {x}?"),
        ("Do {x} and {y} have the same composer?", "Was the music of {x} and {y} written by the same person?"),
        cues=_words("composer composers composed composes compose music score soundtrack"),
        hints=_words("wrote written"),
    ),
    Relation(
        "studio",
        "work",
        "organisation",
        ("It was produced by {v}.", "The studio behind it is {v}.", "Its studio was {v}."),
        ("the studio of {x}", "the studio that produced {x}", "the studio behind {x}"),
        ("What is the studio of {x}?", "Which studio produced {x}?", "Which studio was behind {x}?"),
        ("Do {x} and {y} have the same studio?", "Were {x} and {y} produced by the same studio?"),
        cues=_words("studio studios produced produces produce producer producers production"),
        hints=_words("company organisation organization firm made"),
    ),
    Relation(
        "headquarters",
        "organisation",
        "city",
        (
            "{x} is {a_type} based in {v}.",
            "{x} is {a_type} with headquarters in {v}.",
            "{x} is {a_type} and has its headquarters in {v}.",
        ),
        ("the headquarters city of {x}", "the city where {x} is based", "the city where {x} has its headquarters"),
        (
            "What is the headquarters city of {x}?",
            "Where is {x} based?",
            "In which city does {x} have its headquarters?",
        ),
        ("Do {x} and {y} have the same headquarters city?", "Are {x} and {y} based in the same city?"),
        cues=_words("headquarters headquartered headquarter based seat located situated"),
        hints=_words("city where"),
    ),
    Relation(
        "founder",
        "organisation",
        "person",
        ("It was founded by {v}.", "Its founder is {v}.", "{v} founded it."),
        ("the founder of {x}", "the person who founded {x}", "the person that founded {x}"),
        ("Who is the founder of {x}?", "Who founded {x}?", "Which person founded {x}?"),
        ("Do {x} and {y} have the same founder?", "Were {x} and {y} founded by the same person?"),
        cues=_words("founder founders founded founds established"),
        hints=_words("started created found set"),
    ),
    Relation(
        "capital",
        "country",
        "city",
        (
            "{x} is {a_type} whose capital is {v}.",
            "{x} is {a_type} with {v} as its capital.",
            "{x} is {a_type} and its capital is {v}.",
        ),
        ("the capital of {x}", "the capital city of {x}", "the city that is the capital of {x}"),
        ("What is the capital of {x}?", "Which city is the capital of {x}?", "What is the capital city of {x}?"),
        cues=_words("capital"),
        hints=_words("city"),
    ),
    Relation(
        "leader",
        "country",
        "person",
        ("It is led by {v}.", "Its leader is {v}.", "{v} leads it."),
        ("the leader of {x}", "the person who leads {x}", "the person that leads {x}"),
        ("Who is the leader of {x}?", "Who leads {x}?", "Which person leads {x}?"),
        cues=_words("leader leaders leads led lead president ruler rules ruled"),
        hints=_words("head runs governs"),
    ),
)  # fmt: skip

RELATIONS: dict[str, Relation] = {relation.name: relation for relation in _ALL}


def relations_of(kind: str) -> tuple[Relation, ...]:
    """The relations that entities of a kind are subjects of, in the order in which a passage states them."""
    return tuple(relation for relation in _ALL if relation.subject == kind)
