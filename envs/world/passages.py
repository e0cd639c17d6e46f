"""One passage an entity: two or three sentences that state its facts in varied wordings."""

from __future__ import annotations

from random import Random

from common.seeds import stable_hash
from envs.types import Document
from envs.world.facts import Entity, World
from envs.world.relations import relations_of


def passage(world: World, entity: Entity, *, seed: int, paraphrases: int) -> Document:
    """Passage of an entity in the corpus; its id is the entity's and its title is unique.

    Others are called by their titles, so that a namesake can be looked up; the entity itself by its name and its type.
    """
    rng = Random(stable_hash(seed, "passage", entity.id))
    they = rng.choice(("He", "She"))
    a_type = f"{'an' if entity.type[0] in 'aeiou' else 'a'} {entity.type}"
    stated = entity.facts.keys() - {*entity.absent}
    opening, *others = [relation for relation in relations_of(entity.kind) if relation.name in stated]
    rng.shuffle(others)
    sentences = [
        rng.choice(relation.sentences[:paraphrases]).format(
            x=entity.name, a_type=a_type, they=they, v=world.entities[entity.facts[relation.name]].title
        )
        for relation in (opening, *others)
    ]
    return Document(entity.id, entity.title, " ".join(sentences))
