from __future__ import annotations

import string
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.metrics import cover_match, exact_match, f1_score, normalize_answer

TEXT = st.text(max_size=30)
WORDS = st.lists(st.sampled_from(["paris", "texas", "the", "an", "yes", "no", "été", "42"]), max_size=6).map(" ".join)
ANSWERS = st.lists(st.one_of(TEXT, WORDS), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  a\t man,  an\nape and THE  sea ", "man ape and sea"),
        ("A.", ""),
        ("a.n", ""),  # punctuation goes first and leaves the word "an"
        ("U.S.A.", "usa"),
        ("theatre another Ann", "theatre another ann"),
        ("the-end", "theend"),
        ("...!?", ""),
        ("1,234.5", "12345"),
        ("ÉCOLE Straße", "école straße"),
        ("“curly” – dash", "“curly” – dash"),  # only ASCII punctuation is deleted
        ("new\u00a0york\u3000city", "new york city"),
        ("東京 the 大阪", "東京 大阪"),
        ("Zoe\u0308", "zo\u00eb"),
        ("J\u030c", "\u01f0"),  # no capital letter takes the accent in
        ("\u2260 =\u0338", "\u2260 \u2260"),  # not an equals sign, which is punctuation
        ("a\u0331 b", "a\u0331 b"),  # an accent that no letter takes in leaves no article
        ("\u0130stanbul", "i\u0307stanbul"),
        ("\uff21\uff22 10\u00b2", "\uff41\uff42 10\u00b2"),  # other spellings stay other
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "f1", "cover"),
    [
        ("Paris", ["Paris"], 1, 1, 1),
        ("the city of Paris.", ["Paris"], 0, 0.5, 1),  # "city of paris": 1 of 3 and 1 of 1
        ("paris texas", ["texas paris"], 0, 1, 0),  # a bag has no order
        ("new new york", ["new york city"], 0, 2 / 3, 0),  # the second "new" is not shared again
        ("york", ["NYC", "New York"], 0, 2 / 3, 0),
        ("NYC", ["New York", "N.Y.C."], 1, 1, 1),
        ("yes", ["yes"], 1, 1, 1),
        ("yes it is", ["yes"], 0, 0, 1),
        ("yes", ["yes it is"], 0, 0, 0),
        ("no", ["no one", "No!"], 1, 1, 1),
        ("noanswer", ["noanswer given"], 0, 0, 0),
        ("nobody", ["no"], 0, 0, 1),  # a character substring
        ("", ["Paris"], 0, 0, 0),
        ("", [""], 0, 0, 0),
        ("The", ["the", "A"], 0, 0, 0),
        ("!?", ["..."], 0, 0, 0),
        ("Paris", ["The", "?!"], 0, 0, 0),  # an alias that says nothing covers nothing
        ("Paris", [], 0, 0, 0),
        ("Zoë", ["zoë"], 1, 1, 1),
        ("Zoe\u0308 \u00c9", ["zo\u00eb E\u0301"], 1, 1, 1),
        ("Paris", "Paris", 1, 1, 1),  # one answer alone is not a list of letters
        ("p", "Paris", 0, 0, 0),
    ],
)
def test_scores(prediction: str, answers: list[str] | str, em: float, f1: float, cover: float) -> None:
    assert exact_match(prediction, answers) == em
    assert f1_score(prediction, answers) == pytest.approx(f1)
    assert cover_match(prediction, answers) == cover


@given(st.one_of(TEXT, WORDS))
def test_normalising_leaves_nothing_to_normalise_but_new_articles(text: str) -> None:
    once = normalize_answer(text)
    assert not set(once) & set(string.punctuation)
    assert not set(once.split()) & {"a", "an", "the"}
    assert once == " ".join(once.split())


@given(TEXT, TEXT)
def test_scores_do_not_depend_on_the_unicode_form(prediction: str, answer: str) -> None:
    for score in (exact_match, f1_score, cover_match):
        values = [score(normalize(a, prediction), normalize(b, answer)) for a in ("NFC", "NFD") for b in ("NFC", "NFD")]
        assert values == [score(prediction, answer)] * 4


@given(st.one_of(TEXT, WORDS), ANSWERS)
def test_scores_are_ordered_and_bounded(prediction: str, answers: list[str]) -> None:
    em, f1, cover = (score(prediction, answers) for score in (exact_match, f1_score, cover_match))
    assert em in (0, 1)
    assert cover in (0, 1)
    assert em <= f1 <= 1
    assert em <= cover


@given(st.one_of(TEXT, WORDS), ANSWERS, st.one_of(TEXT, WORDS))
def test_another_alias_never_lowers_a_score_and_order_does_not_matter(prediction: str, answers: list[str], more: str):
    for score in (exact_match, f1_score, cover_match):
        assert score(prediction, [*answers, more]) >= score(prediction, answers)
        assert score(prediction, answers) == score(prediction, answers[::-1])
        assert score(prediction, answers) == max(score(prediction, [answer]) for answer in answers)


@given(st.one_of(TEXT, WORDS), st.one_of(TEXT, WORDS))
def test_f1_is_symmetric_and_blind_to_case_articles_and_punctuation(one: str, other: str) -> None:
    assert f1_score(one, [other]) == f1_score(other, [one])
    assert f1_score(f"the {one} !", [other]) == f1_score(one, [other])


@given(st.one_of(TEXT, WORDS))
def test_a_text_is_its_own_answer_unless_it_says_nothing(text: str) -> None:
    says = float(bool(normalize_answer(text)))
    assert exact_match(text, [text]) == f1_score(text, [text]) == cover_match(text, [text]) == says
