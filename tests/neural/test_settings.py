"""Settings: weights that make no sense, and the hash of a recipe, by which records say what ran."""

import math

import pytest

import daband
from daband.errors import InvalidInput
from daband.neural import Weight
from daband.neural._settings import parse_recipe

IMAGES = (3, 28, 28)


def test_a_recipe_is_read_from_its_settings():
    recipe = daband.recipe_for("default", context_shape=IMAGES)
    again = parse_recipe(recipe.settings())
    assert recipe == again
    for changes in (
        {"weights": {"data_divergence": 1.0}},
        {"learning": {"gate_exponent": 0.0}},
        {"encoder": {"options": {"pixels": "symmetric"}}},
        {"replay": {"sampling": "last"}},
        {"alpha": 0.5},
    ):
        assert recipe.changed(changes) != recipe, changes


@pytest.mark.parametrize(
    "wrong", [{"value": -1.0}, {"value": math.nan}, {"start": -1}, {"ramp": -1}]
)
def test_nonsense_weights_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Weight(**wrong)
