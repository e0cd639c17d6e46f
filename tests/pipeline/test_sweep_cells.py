"""Cells of a sweep: combinations, their names, and what is refused."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from pipeline.sweep_cells import cells, split

LR, BETA = "stages.rl.module.optimizer.lr", "parts.credit.beta"


def test_cells_are_all_combinations_with_seeds_innermost() -> None:
    found = cells("quick", ["seed=0,1", f"{LR}=1e-5,3e-5", "devices=2"])
    assert [cell.name for cell in found] == ["lr=1e-5, seed 0", "lr=1e-5, seed 1", "lr=3e-5, seed 0", "lr=3e-5, seed 1"]
    assert found[0].overrides == ("experiment=quick_lr_1e-5", f"{LR}=1e-5", "devices=2", "seed=0")
    assert [cell.arm for cell in cells("quick", ["seed=3,4"])] == ["", ""]
    assert cells("quick", ["seed=3"])[0].overrides == ("experiment=quick", "seed=3")


def test_names_are_as_short_as_they_can_be() -> None:
    [one, *_] = cells("q", [f"{LR}=1,2", "stages.prm.module.optimizer.lr=3,4", f"{BETA}=[0, 1],{{a: 'x,y'}}"])
    assert one.overrides[0] == "experiment=q_rl.module.optimizer.lr_1_prm.module.optimizer.lr_3_beta_-0-1-"


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1e-5,3e-5", ["1e-5", "3e-5"]), ("[1,2],[3]", ["[1,2]", "[3]"]), ("'a,]',{b: (c,d)}", ["'a,]'", "{b: (c,d)}"])],
)
def test_a_comma_in_brackets_or_quotes_is_part_of_a_value(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["seed"], "'seed' is no setting to vary"),
        (["seed=0", "seed=1"], "'seed=1' is no setting to vary: write key=value,value with each key once"),
        (["experiment=a,b"], "'experiment=a,b' is no setting to vary"),
        (["seed=0,,1"], "'seed=0,,1' has an empty value, or one twice"),
        (["seed=0,0"], "'seed=0,0' has an empty value, or one twice"),
        (["a.b=x y,x_y", "c=1,2"], ""),
        (["a.b=x y,x%y"], "'b=x%y' and 'b=x y' would both be the experiment=q_b_x-y: vary them apart"),
    ],
)
def test_what_gives_no_cells_is_one_line(settings: list[str], message: str) -> None:
    if not message:
        assert len(cells("q", settings)) == 4
        return
    with pytest.raises(ConfigError, match=f"^{message}"):
        cells("q", settings)
