"""As much of OpenSearch as the suite uses: indexes, aliases, bulk requests, and a search that counts shared words."""

from __future__ import annotations

import json
import re
from typing import Any


class FakeOpenSearch:
    """The function of a `ScriptedServer`. `rejects` is a word whose queries are refused."""

    def __init__(self) -> None:
        self.indexes: dict[str, list[dict[str, Any]]] = {}
        self.aliases: dict[str, str] = {}
        self.rejects = "\0"

    def __call__(self, method: str, path: str, body: str) -> tuple[int, object]:
        name, _, action = path.strip("/").partition("/")
        index = self.aliases.get(name, name)
        if path == "/_aliases":
            return self._alias(json.loads(body)["actions"])
        if method == "PUT":
            self.indexes[name] = []
            return 200, {"acknowledged": True}
        if index not in self.indexes:
            reason = {"type": "index_not_found_exception", "reason": f"no such index [{name}]"}
            return 404, {"error": {"root_cause": [reason]}, "status": 404}
        if method == "DELETE":
            del self.indexes[index]
            return 200, {"acknowledged": True}
        lines = [json.loads(line) for line in body.splitlines()] if action in ("_bulk", "_msearch") else []
        if action == "_bulk":
            self.indexes[index] += lines[1::2]
            return 200, {"errors": False, "items": []}
        if action == "_msearch":
            return 200, {"responses": [self._found(index, wanted) for wanted in lines[1::2]]}
        return 200, {"_count": {"count": len(self.indexes[index])}, "_alias": {index: {"aliases": {}}}}.get(action, {})

    def _alias(self, actions: list[dict[str, Any]]) -> tuple[int, object]:
        for action in actions:
            if "add" in action:
                self.aliases[action["add"]["alias"]] = action["add"]["index"]
            else:
                del self.indexes[action["remove_index"]["index"]]
        return 200, {"acknowledged": True}

    def _found(self, index: str, wanted: dict[str, Any]) -> dict[str, Any]:
        match = wanted["query"]["multi_match"]
        asked = set(re.findall(r"\w+", match["query"].lower()))
        if self.rejects in asked:
            return {"error": {"root_cause": [{"type": "too_many_clauses", "reason": "too many words"}]}, "status": 400}
        weights = {field.partition("^")[0]: float(field.partition("^")[2] or 1) for field in match["fields"]}
        scored = []
        for row in self.indexes[index]:
            words = {field: set(re.findall(r"\w+", row[field].lower())) for field in weights}
            score = sum(weight * len(asked & words[field]) for field, weight in weights.items())
            if score:
                scored.append({"_id": str(row["number"]), "_score": score, "_source": row})
        scored.sort(key=lambda hit: (-hit["_score"], hit["_source"]["number"]))
        return {"hits": {"hits": scored[: wanted["size"]]}}
