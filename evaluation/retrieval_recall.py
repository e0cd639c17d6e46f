"""Gold documents that an episode found, and whether it stopped once it had them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from common.document_names import id_key, title_key
from envs.types import Episode, Gold

Match = Literal["id", "title"]

STOPPING = ("em", "searches", "premature", "late")
_HOPS = "hops="


def evidence(episode: Episode, gold: Gold, match: Match) -> dict[str, float | None]:
    """`recall`, `premature` and `late` of a finished episode; all None where no gold document is known.

    - `recall`: share of the gold documents among all hits, 0 without a search.
    - `premature`: 1 if it answered though some gold document was never found.
    - `late`: 1 if it searched again though it had found them all.

    Args:
        episode: a finished episode.
        gold: what its dataset knows of the question.
        match: whether documents are compared by id or by title, as in `common.document_names`.
    """
    wanted = set(map(id_key, gold.documents) if match == "id" else map(title_key, gold.titles))
    if not wanted:
        return dict.fromkeys(("recall", "premature", "late"))
    missing, late = set(wanted), False
    for turn in episode.turns:
        late |= turn.action.kind == "query" and not missing
        documents = [hit.document for hit in turn.hits]
        missing -= {id_key(d.id) if match == "id" else title_key(d.title) for d in documents}
    return {
        "recall": (len(wanted) - len(missing)) / len(wanted),
        "premature": float(episode.status == "answered" and bool(missing)),
        "late": float(late),
    }


def stopping_by_hops(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of the groups of an evaluation's results, those by number of hops: what they say of when episodes stop."""
    for group in groups:
        if group["group"].startswith(_HOPS):
            place = {"dataset": group["dataset"], "split": group["split"], "hops": group["group"].removeprefix(_HOPS)}
            yield place | {name: group.get(name) for name in ("n", *STOPPING)}
