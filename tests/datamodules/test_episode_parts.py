"""Fits that share the episodes of one stage: `EpisodeData(part=…)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from datamodules.episode_data import EpisodeData
from datamodules.sources import choose
from tests.datamodules.test_episode_data import data, episodes


def test_parts_that_meet_share_out_the_episodes(tmp_path: Path) -> None:
    whole = episodes(40)
    halves = [data(tmp_path, whole, part=part).train for part in ((0.0, 0.3), (0.3, 1.0))]
    texts = [{tuple(item.ids_T.tolist()) for item in half} for half in halves]
    assert len(texts[0] | texts[1]) == sum(map(len, texts)) == 40
    assert 6 <= len(halves[0]) <= 18


def test_a_part_cuts_the_questions_of_a_source_s_part_evenly(tmp_path: Path) -> None:
    asked = [one.question for one in episodes(80)]
    chosen = {one.id for one in choose(asked, part=(0.0, 0.5), limit=None, sample=None, seed=0)}
    whole = [one for one in episodes(80) if one.question.id in chosen]
    kept = data(tmp_path, whole, part=(0.5, 1.0)).train
    assert 0.3 < len(kept) / len(whole) < 0.7


def test_bounds_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"part: \[0.5, 0.5\] must be two bounds in order"):
        EpisodeData(tmp_path, part=(0.5, 0.5))
