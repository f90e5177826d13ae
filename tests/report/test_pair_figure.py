import numpy as np
import pytest

from daband.domains import from_log
from daband.report.pair_figure import draw_pair, shifted_features


def test_shift_is_told_in_deviations():
    generator = np.random.default_rng(0)
    source = generator.normal([0.0, 10.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    target = generator.normal([3.0, 8.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    here, there, difference = shifted_features(source, target)
    np.testing.assert_allclose(here, [0.0, 10.0, 5.0], atol=0.1)
    np.testing.assert_allclose(there, [3.0, 8.0, 5.0], atol=0.1)
    np.testing.assert_allclose(difference, [3.0, -1.0, 0.0], atol=0.1)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_log_can_be_drawn_too(tmp_path, ending):
    contexts, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3
    pair = from_log(
        source=(contexts, labels, labels / 2, np.full(30, 0.5)),
        target=contexts,
        target_test=(contexts, labels),
        n_arms=3,
    )
    path = draw_pair(pair, tmp_path / f"log.{ending}")
    assert path.stat().st_size > 1000
