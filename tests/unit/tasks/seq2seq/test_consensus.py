"""The mean chrF of each text with all others."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from vaak.tasks.seq2seq.predict import expected_chrf

TEXTS = st.lists(st.text("ab c\u0915\u093e\u093f", max_size=12), min_size=1, max_size=6)


@given(TEXTS)
@example(["", " "])
@example(["a"])
@example(["the boy", "the boy goes home", "a boy goes", "यह घर है", "यह पुराना घर"])
def test_the_likeness_is_sacrebleus(texts: list[str]):
    of_sentences = CHRF()
    expected = [
        np.mean([of_sentences.sentence_score(one, [reference]).score for reference in texts]) / 100 for one in texts
    ]
    np.testing.assert_allclose(expected_chrf(texts), expected, atol=1e-12)


def test_a_text_that_repeats_itself_is_not_chosen():
    texts = ["यह पुराना घर है", "यह घर पुराना है", "यह पुराना घर", "यह यह यह यह यह यह यह यह"]
    assert expected_chrf(texts).argmax() == 0
    assert expected_chrf(texts).argmin() == 3
