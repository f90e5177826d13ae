"""Random numbers of a seed and a round: a batch has those of its rows."""

import numpy as np

from daband.linear._draws import draw_uniforms

KEY = np.uint64(12345678901234567890)


def test_uniform_numbers_are_uniform_and_independent():
    plain = draw_uniforms(KEY, 7, 20_000, 4)
    assert abs(plain.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(plain[:-1, 0], plain[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(plain)) == plain.size
    assert (plain >= 0).all()
    assert (plain < 1).all()


def test_a_batch_of_uniforms_is_its_singles():
    whole = draw_uniforms(KEY, 0, 6, 3)
    parts = np.concatenate([draw_uniforms(KEY, i, 1, 3) for i in range(6)])
    np.testing.assert_array_equal(whole, parts)
