"""Text from models and users is escaped wherever it is shown."""

from __future__ import annotations

import pytest

from vaak.serve.demo import drawing

HOSTILE = "<script>alert(1)</script>\"'"


@pytest.mark.parametrize(
    "shown",
    [
        drawing.frame(HOSTILE),
        drawing.wrong(HOSTILE),
        drawing.plain_text(HOSTILE, HOSTILE),
        drawing.bars({HOSTILE: 0.5}, HOSTILE),
        drawing.lanes([(0, 1, HOSTILE)], 1),
        drawing.draw_time_table([(0, 1, HOSTILE)], HOSTILE, HOSTILE),
        drawing.link_file(HOSTILE, HOSTILE, "srt"),
        drawing.picture(b"", HOSTILE),
        drawing.as_json({HOSTILE: HOSTILE}),
    ],
)
def test_what_comes_from_models_and_users_is_escaped(shown):
    assert "<script" not in shown
    assert '<a download="&lt;script&gt;' in shown or "alert(1)" in shown
    assert "\"'" not in shown.replace('"\\"\'', "")
