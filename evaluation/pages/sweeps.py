"""Arms that differ in one number, which ends their names: `beta_0.3`."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"(.*[A-Za-z]\w*?)_(\d+(?:\.\d+)?)")
_LETTERS = {"alpha": "α", "beta": "β", "gamma": "γ", "lambda": "λ"}


def split_number(name: str) -> tuple[str, float | None]:
    """The name without the number that ends it, and the number; the name itself and None where there is none."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], float(found[2])) if found else (name, None)


def shown_name(family: str) -> str:
    """A family of arms as a figure names it: `lambda` is λ."""
    return " ".join(_LETTERS.get(word, word) for word in family.split("_"))
