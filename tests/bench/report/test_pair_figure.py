import re
from dataclasses import replace

import numpy as np
import pytest

from daband.bench.report._pair_figure import draw_pair, pair_figure, shifted_features
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._logs import from_log


def test_shift_is_told_in_deviations():
    generator = np.random.default_rng(0)
    source = generator.normal([0.0, 10.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    target = generator.normal([3.0, 8.0, 5.0], [1.0, 2.0, 0.0], size=(20_000, 3))
    here, there, difference = shifted_features(source, target)
    np.testing.assert_allclose(here, [0.0, 10.0, 5.0], atol=0.1)
    np.testing.assert_allclose(there, [3.0, 8.0, 5.0], atol=0.1)
    np.testing.assert_allclose(difference, [3.0, -1.0, 0.0], atol=0.1)


def texts(path):
    """The texts of an SVG: matplotlib draws letters as shapes and says in a comment what they spell."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_a_log_can_be_drawn_too(tmp_path):
    contexts, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3
    moved = contexts + np.array([0.0, 4.0 * contexts[:, 1].std()])
    pair = from_log(
        source_test=None,
        source=(contexts, labels, labels / 2, np.full(30, 0.5)),
        target=moved,
        target_test=(moved, labels),
        n_arms=3,
    )
    found = texts(draw_pair(pair, tmp_path / "log.svg"))
    assert {"feature 1  (+4.0)", "feature 0  (+0.0)"} <= set(found)
    # The log does not say which arm was best, so the legend of best arms has the target alone; that of features both.
    assert (found.count("source"), found.count("target")) == (1, 2)


@pytest.mark.parametrize("shape", [(3, 16, 16), (16, 18, 3), (18, 16)])
def test_examples_of_every_class_of_both_domains_are_drawn(shape, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, *shape), dtype=np.uint8)
    labels = np.arange(40) % 4
    names = ("stop", "yield", "merge", "turn")
    pair = from_arrays(
        source=(images, labels), target=images, target_test=(images, labels), n_arms=4, class_names=names
    )
    path = draw_pair(pair, tmp_path / "images.svg")
    found = texts(path)
    for name in names:
        assert found.count(name) == 4 + 4 + 1  # four examples in each domain, and a bar
    assert path.read_text().count("<image") == 32


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF-")])
def test_the_ending_decides_about_the_format(tmp_path, ending, start):
    contexts, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3
    pair = from_arrays(source=(contexts, labels), target=contexts, target_test=(contexts, labels))
    assert draw_pair(pair, tmp_path / f"pair.{ending}").read_bytes().startswith(start)


def a_log(**changes):
    contexts, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3
    shifted = contexts + np.array([5.0, 0.0])
    pair = from_log(
        source_test=None,
        source=(contexts, labels, labels / 2, np.full(30, 0.5)),
        target=shifted,
        target_test=(shifted, labels),
        n_arms=3,
    )
    return replace(pair, **changes)


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
