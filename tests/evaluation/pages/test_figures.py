"""What figures show, before it is drawn."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import DataError
from evaluation.pages.figures import chosen, file_name, image
from evaluation.pages.ranking_figures import auc_by_kind, learning_curves, reliability
from evaluation.pages.result_figures import arms, by_hops, curves, shown_name, split_number, sweep


def row(experiment: str, seed: int, em: float | None, **more: Any) -> dict[str, Any]:
    place = {"experiment": experiment, "seed": seed, "stage": "eval", "dataset": "toy", "split": "dev"}
    return {**place, "em": em, "em_low": 0.4, "em_high": 0.9, **more}


def test_a_curve_is_drawn_at_equal_distances_to_where_its_last_seed_ends() -> None:
    points = [
        row("a", 0, None) | {"tokens": [0, 10_000, 20_000], "em": [0.0, 0.5, 0.6]},
        row("a", 1, None) | {"tokens": [0, 10_000], "em": [0.25, None]},
        row("b", 0, None) | {"tokens": [0, 20_000], "em": [0.1, 0.3]},
    ]
    figure = curves({"curves": points})
    line = figure.panels["toy/dev"]["a:eval"]
    assert line.x[::10] == [0, 10, 20]
    assert line.by_seed[0][::5] == pytest.approx([0, 25, 50, 55, 60])
    assert line.by_seed[1][0] == 25
    assert all(value != value for value in line.by_seed[1][1:]), "a seed has nothing after its last point"
    assert figure.panels["toy/dev"]["b:eval"].mean[10] == pytest.approx(20)


def group(kind: str, seeds: list[float | None], ece: float = 0.1) -> dict[str, Any]:
    known = [value for value in seeds if value is not None]
    mean = sum(known) / len(known) if known else None
    figures = {"auc": mean, "auc_low": 0.3, "auc_high": 0.7, "auc_seeds_low": 0.1, "auc_seeds_high": 0.9}
    scores = {"prm": figures | {"auc_seeds": seeds}, "logp_mean": figures | {"auc": 0.5, "auc_seeds": [0.4, 0.6]}}
    return {"group": kind, "scorers": {**scores, "position": scores["prm"]}}


def ranking(experiment: str, judged: int | None, answers: list[float | None]) -> dict[str, Any]:
    bins = [{"n": [1, 0, 3], "predicted": [0.1, None, 0.8], "true": [0.0, None, 1.0]},
            {"n": [3, 0, 0], "predicted": [0.2, None, None], "true": [1.0, None, None]}]  # fmt: skip
    calibration = [[{"group": name, "ece": ece, "true": 0.5, "bins": part} for name in ("answer", "pooled")]
                   for ece, part in zip((0.1, 0.3), bins, strict=True)]  # fmt: skip
    return {
        "experiment": experiment, "stage": "rank", "seeds": [0, 1], "judged_steps": [judged, judged],
        "scorers": ["prm"], "groups": [group("macro", answers), group("answer", answers), group("pooled", [0.9, 0.9])],
        "calibration": {"prm": calibration},
    }  # fmt: skip


def test_arms_have_the_mean_and_an_interval_over_seeds_or_questions() -> None:
    rows = [row("one", 0, 0.59), row("one", 1, 0.61), row("two", 0, 0.6), row("none", 0, None)]
    panels: Any = arms({"rows": [*rows, row("wide", 0, 0.5), row("wide", 1, 0.7)]}).panels
    one, two, wide = panels["toy/dev"].values()
    assert list(panels["toy/dev"]) == ["one:eval", "two:eval", "wide:eval"]
    # mean 60, standard error 1; Student's t with one degree of freedom has its 97.5 % quantile at 12.706
    assert (one.value, one.low, one.seeds) == (pytest.approx(60), pytest.approx(60 - 12.706, abs=0.001), [59, 61])
    assert (wide.low, wide.high) == (0, 100), "a share ends there"
    assert (two.value, two.low, two.high, two.seeds) == (60, 40, 90, ())


def test_a_sweep_has_a_line_for_each_family_by_its_number_and_arms_without_one_as_references() -> None:
    rows = [row(f"beta_{b}", seed, em) for b, em in (("0.5", 0.6), ("0", 0.8)) for seed in (0, 1)]
    rows += [row("gain_beta_0.5", 1, 0.9), row("start", 0, 0.7)]
    panels: Any = sweep({"rows": rows}).panels
    beta, gain, start = (panels["toy/dev"][name] for name in ("β", "gain β", "start:eval"))
    assert (beta.x, beta.by_seed, beta.reference) == ([0, 0.5], [[80, 60], [80, 60]], False)
    assert (gain.x, gain.by_seed) == ([0.5], [[90]])
    assert (start.x, start.by_seed, start.reference) == ([0, 0.5], [[70, 70]], True)
    assert not sweep({"rows": [row("start", 0, 0.7)]}).panels


def test_families_have_what_their_arms_display_names_share() -> None:
    rows = [row(f"beta_{b}", 0, 0.6, arm=f"Truth, weight = {b}", id=f"beta_{b}:eval") for b in ("0", "0.5")]
    figure = sweep({"rows": [*rows, row("start", 0, 0.7, arm="SFT, first", id="start:eval")]})
    assert (list(figure.panels["toy/dev"]), figure.x) == (["SFT, first", "Truth"], "weight")


def test_families_of_one_stage_need_not_name_it_and_several_do() -> None:
    rows = [row("beta_0", 0, 0.8), {**row("beta_0", 0, 0.7), "stage": "other"}]
    panels: Any = sweep({"rows": rows}).panels
    assert list(panels["toy/dev"]) == ["β: eval", "β: other"]


def test_the_number_of_a_sweep_may_end_the_stage_s_name() -> None:
    rows = [{**row("betas", 0, em), "stage": f"eval_rl_{b}"} for b, em in ((30, 0.6), (0, 0.8))]
    panels: Any = sweep({"rows": [*rows, {**row("betas", 0, 0.7), "stage": "eval_rft"}]}).panels
    assert list(panels["toy/dev"]) == ["betas:eval_rft", "betas"]
    assert (panels["toy/dev"]["betas"].x, panels["toy/dev"]["betas"].by_seed) == ([0, 30], [[80, 60]])


def test_results_by_hops_have_a_panel_for_each_measure_that_is_known() -> None:
    rows = [row("one", seed, 0.5 + seed / 10, hops=hops, searches=int(hops) + seed, late=None)
            for hops in ("10", "2") for seed in (0, 1)]  # fmt: skip
    panels: Any = by_hops({"stopping": rows}).panels
    assert list(panels) == ["toy/dev: em", "toy/dev: searches"]
    line = panels["toy/dev: searches"]["one:eval"]
    assert (line.x, line.by_seed) == ([2, 10], [[2, 10], [3, 11]])
    assert panels["toy/dev: searches"]["one search a hop"].by_seed == [[2, 10]]
    assert not by_hops({"stopping": []}).panels


def test_of_one_ranking_every_score_is_shown_and_of_several_the_reward_models() -> None:
    one: Any = auc_by_kind({"rankings": [ranking("a", 300, [0.6, 0.8])]}).panels
    assert {name: list(dots) for name, dots in one.items()} == {
        "mean of kinds": ["prm", "logp_mean", "position"], "answer": ["prm", "logp_mean", "position"],
    }  # fmt: skip
    assert (one["answer"]["prm"].value, one["answer"]["prm"].low, one["answer"]["prm"].high) == (0.7, 0.1, 0.9)
    several: Any = auc_by_kind({"rankings": [ranking("a", 300, [0.6, 0.8]), ranking("b", 900, [None, 0.8])]}).panels
    assert list(several["answer"]) == ["a", "b"]
    assert several["answer"]["a"].beside == {"logp_mean": 0.5, "position": 0.7}
    assert several["answer"]["b"].seeds == [0.8]


def test_reliability_puts_the_steps_of_all_seeds_together_and_names_the_mean_error() -> None:
    panels: Any = reliability({"rankings": [ranking("a", 300, [0.6, 0.8])]}).panels
    curve = panels["answer"]["a (error of all kinds 0.200)"]
    # first bin: one step at .1, untrue, and three at .2, all true; the second is empty; the third has three, all true
    assert curve.x == pytest.approx([0.175, 0.8])
    assert curve.by_seed == [pytest.approx([0.75, 1.0])]
    assert curve.sizes == [4, 3]


def test_kinds_that_are_all_true_have_no_reliability_curve() -> None:
    entry = ranking("a", 300, [0.6, 0.8])
    for seed in entry["calibration"]["prm"]:
        seed[0]["true"] = 1.0
    assert list(reliability({"rankings": [entry]}).panels) == ["all kinds"]


def test_learning_curves_are_by_the_judged_steps_and_not_by_the_name() -> None:
    entries = [
        ranking("steps_1000", 950, [0.7, None]),
        ranking("steps_300", 310, [0.6, 0.8]),
        ranking("x", None, [0, 1]),
    ]
    panels: Any = learning_curves({"rankings": entries}).panels
    assert list(panels) == ["mean of kinds", "answer"]
    curve = panels["answer"]["steps"]
    assert curve.x == [310, 950]
    assert curve.by_seed[0] == [0.6, 0.7]
    assert curve.by_seed[1][0] == 0.8
    assert curve.mean == [0.7, 0.7], "a seed without figure is left out, not taken for 0"
    assert panels["answer"]["logp_mean"].reference
    assert panels["answer"]["logp_mean"].mean == [0.5, 0.5]
    assert not learning_curves({"rankings": [ranking("x", None, [0, 1])]}).panels


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("beta_0.3", ("beta", 0.3)),
        ("top_k_1", ("top_k", 1)),
        ("beta_0", ("beta", 0)),
        ("eq7_0.3", ("eq7", 0.3)),
        ("kind_scaled_0.9", ("kind_scaled", 0.9)),
        ("smollm2_135m", None),
        ("135_7", None),
        ("x", None),
    ],
)
def test_the_number_that_ends_a_name(name: str, parts: tuple[str, float] | None) -> None:
    assert split_number(name) == (parts or (name, None))


def test_greek_letters_are_written_as_such() -> None:
    assert (shown_name("gain_beta"), shown_name("top_k")) == ("gain β", "top k")


def test_a_figure_may_be_of_some_arms_and_one_with_nothing_to_show_is_named() -> None:
    results = {"rows": [row("one", 0, 0.5), row("two", 0, 0.6)]}
    for asked in ("arms=two", "arms=two:eval,x"):
        assert list(chosen(asked, results).panels["toy/dev"]) == ["two:eval"]
    named = {"rows": [row("one", 0, 0.5, arm="first"), row("two", 0, 0.6, arm="second")]}
    assert list(chosen("arms=second", named).panels["toy/dev"]) == ["second"]
    with pytest.raises(DataError, match=r"the results of three hold nothing for the figure 'arms'"):
        chosen("arms=three", results)
    with pytest.raises(DataError, match=r"no figure is called 'arm'; there are: arms, auc,"):
        chosen("arm", results)


def test_files_and_captions_are_named_after_what_was_asked_for() -> None:
    assert file_name("auc=one,two:rank") == "auc-one-two-rank.svg"
    assert image("sweep=beta_0", "f.svg").startswith("![Exact match by the number that the arms differ in](f.svg)\n*")
