"""Values as JSON has them, drawn for tests of what a server reads."""

from __future__ import annotations

from hypothesis import strategies as st

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
"""What no schema foresees; it may be what JSON can't hold, such as NaN, which Python's writes all the same."""
