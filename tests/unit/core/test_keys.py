"""Keys depend on every part, on the order, and on nothing else."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from vaak.core.random_keys import Purpose, draw_key

parts = st.lists(st.one_of(st.integers(0, 10**9), st.text("ab1", max_size=3)), max_size=4)


@given(purpose=st.sampled_from(Purpose), parts=parts)
def test_a_key_is_a_seed_of_32_bits_and_repeats_itself(purpose: Purpose, parts: list[int | str]):
    key = draw_key(purpose, *parts)
    assert 0 <= key < 2**32
    assert key == draw_key(purpose, *parts)


def test_every_part_and_its_place_matter():
    keys = {
        draw_key(purpose, *parts) for purpose in (Purpose.DATA, Purpose.MODEL) for parts in product(range(8), repeat=3)
    }
    assert len(keys) == 2 * 8**3


def test_parts_do_not_run_together():
    assert draw_key(Purpose.DATA, 1, 23) != draw_key(Purpose.DATA, 12, 3)
    assert draw_key(Purpose.DATA, 1) != draw_key(Purpose.DATA, 1, "")


def test_keys_stay_what_they_are():
    """Another hash would break every resume and every recorded result."""
    assert draw_key(Purpose.DATA, 42, 0, 7, 0) == 463117421
