import numpy as np

from daband.domains._source_rounds import apply_by_source


def test_results_have_the_order_of_the_contexts():
    contexts = np.arange(6.0)[:, None]
    names = np.array(["fr", "de", "fr", "de", "de", "fr"])
    calls = []

    def double(rows, name):
        calls.append((name, len(rows)))
        return [2 * rows[:, 0]]

    (doubled,) = apply_by_source(double, contexts, names)
    np.testing.assert_array_equal(doubled, 2 * contexts[:, 0])
    assert calls == [("de", 3), ("fr", 3)]
    (doubled,) = apply_by_source(double, contexts, None)
    np.testing.assert_array_equal(doubled, 2 * contexts[:, 0])
    assert calls[2:] == [("source", 6)]
