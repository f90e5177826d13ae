from dataclasses import replace

import numpy as np
import pytest

from daband.domains import from_log
from daband.report.pair_figure import draw_pair, pair_figure, shifted_features


def test_shift_is_told_in_deviations():
    generator = np.random.default_rng(0)
    source = generator.normal([0.0, 10.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    target = generator.normal([3.0, 8.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    here, there, difference = shifted_features(source, target)
    np.testing.assert_allclose(here, [0.0, 10.0, 5.0], atol=0.1)
    np.testing.assert_allclose(there, [3.0, 8.0, 5.0], atol=0.1)
    np.testing.assert_allclose(difference, [3.0, -1.0, 0.0], atol=0.1)


def a_log(**changes):
    contexts, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3
    shifted = contexts + np.array([5.0, 0.0])
    pair = from_log(
        source=(contexts, labels, labels / 2, np.full(30, 0.5)),
        target=shifted,
        target_test=(shifted, labels),
        n_arms=3,
    )
    return replace(pair, **changes)


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_a_file_of_its_kind(tmp_path, ending, start):
    path = draw_pair(a_log(), tmp_path / f"log.{ending}")
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def heights(axes):
    """The bars of each domain, by its name in the legend."""
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}


def test_a_log_is_drawn_with_the_features_that_shift_and_the_arms_of_the_target():
    left, right = pair_figure(a_log()).axes
    assert left.get_yticklabels()[-1].get_text().startswith("feature 0")  # the most shifted stands on top
    target = {bars.get_label(): [bar.get_width() for bar in bars] for bars in left.containers}["target"]
    assert target[-1] == pytest.approx(5.5, abs=0.2)
    assert heights(right) == {"target": [pytest.approx(1 / 3)] * 3}  # a log does not tell which arm was best


def test_a_target_without_labels_is_drawn_without_its_arms():
    left, right = pair_figure(a_log(target_test=None)).axes
    assert {bars.get_label() for bars in left.containers} == {"source", "target"}
    assert heights(right) == {}


def test_names_are_no_formulas(tmp_path):
    pair = a_log(class_names=("$x$", "$\\frac$", "a\nb"), name="$\\bad$ and $")
    assert draw_pair(pair, tmp_path / "log.png").stat().st_size > 0
