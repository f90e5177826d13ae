"""Settings: weights that make no sense, and the hash of a recipe, by which records say what ran."""

import math

import pytest

import daband
from daband.errors import InvalidInput
from daband.neural._settings import Weight, parse_recipe

IMAGES = (3, 28, 28)


def test_equal_recipes_have_one_fingerprint_and_others_another():
    recipe = daband.recipe_for("default", context_shape=IMAGES)
    again = parse_recipe(recipe.settings())
    assert recipe.fingerprint() == again.fingerprint()
    for changes in (
        {"weights": {"adversarial": 1.0}},
        {"learning": {"gate_exponent": 0.0}},
        {"encoder": {"options": {"pixels": "symmetric"}}},
        {"replay": {"sampling": "last"}},
        {"alpha": 0.5},
    ):
        assert recipe.changed(changes).fingerprint() != recipe.fingerprint(), changes


def test_a_term_of_weight_zero_is_none():
    recipe = daband.recipe_for("default", context_shape=IMAGES)
    rest = recipe.with_weights(adversarial=0.0)
    without = {
        name: weight
        for name, weight in recipe.settings()["weights"].items()
        if name != "adversarial"
    }
    assert (
        rest.fingerprint() == parse_recipe({**recipe.settings(), "weights": without}).fingerprint()
    )


@pytest.mark.parametrize(
    "wrong", [{"value": -1.0}, {"value": math.nan}, {"start": -1}, {"ramp": -1}]
)
def test_nonsense_weights_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Weight(**wrong)
