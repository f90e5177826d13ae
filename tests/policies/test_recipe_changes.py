"""A recipe said as a change of a named one."""

import json

import pytest

from daband.errors import InvalidInput
from daband.objectives import Weight
from daband.policies import DABand, load, recipe_for
from daband.policies.recipes import resolve_recipe

SHAPE = (3, 28, 28)


def changed(**changes):
    return resolve_recipe({"base": "default-rpd", **changes}, context_shape=SHAPE)


def test_a_number_keeps_the_schedule_and_a_table_changes_it():
    before = recipe_for("default-rpd", context_shape=SHAPE)
    after = changed(weights={"adversarial": 5, "pseudo_labels": {"start": 10}})
    assert after.weights["adversarial"] == Weight(5, shape="sigmoid", steps=6000)
    assert after.weights["pseudo_labels"] == Weight(0.5, shape="step", start=10)
    untouched = {"adversarial", "pseudo_labels"} ^ set(before.weights)
    assert all(after.weights[name] == before.weights[name] for name in untouched)
    assert (after.encoder, after.learning, after.memory) == (before.encoder, before.learning, before.memory)


def test_groups_are_changed_in_part():
    after = changed(
        alpha=0.01,
        learning={"learning_rate": 1e-4, "augmentation": {"shift": 1}},
        encoder={"options": {"channels": [4, 6]}, "latent": {"dimension": 16}},
    )
    before = recipe_for("default-rpd", context_shape=SHAPE)
    assert (after.alpha, after.learning.learning_rate, after.learning.augmentation.shift) == (0.01, 1e-4, 1)
    assert after.learning.augmentation.contrast == before.learning.augmentation.contrast
    assert after.encoder.options["channels"] == (4, 6)
    assert after.encoder.latent.dimension == 16
    assert after.encoder.latent.hidden == before.encoder.latent.hidden


def test_a_changed_policy_is_saved_in_full(tmp_path):
    recipe = {"base": "paper", "weights": {"predicted_reward": 0}, "learning": {"learning_rate": 1e-3}}
    policy = DABand(context_shape=(4,), n_arms=2, recipe=json.loads(json.dumps(recipe)), device="cpu")
    policy.save(tmp_path / "policy.safetensors")
    assert load(tmp_path / "policy.safetensors").recipe == policy.recipe
    assert policy.recipe.learning.learning_rate == 1e-3
    assert not policy.recipe.weights["predicted_reward"]


def test_weight_zero_removes_the_term_and_paper_nlinucb_is_the_rest():
    off = dict.fromkeys(("regression_error", "predicted_reward", "adversarial"), 0)
    recipe = resolve_recipe({"base": "paper", "weights": off}, context_shape=SHAPE)
    alone = recipe_for("paper-nlinucb", context_shape=SHAPE)
    assert {name for name, weight in recipe.weights.items() if weight} == set(alone.weights) == {"source_squared"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "papr"}, "unknown recipe 'papr'"),
        ({"learning": {"learning_rat": 1}}, r"'learning.learning_rat'; did you mean 'learning_rate'"),
        ({"lerning": {}}, "did you mean 'learning'"),
        ({"learning": 3}, "group of settings"),
        ({"learning": {"steps": "many"}}, "is a number"),
        ({"weights": 3}, "table of terms"),
        ({"weights": {"adversarial": -1}}, "finite number >= 0"),
        ({"weights": {"adversarial": {"valu": 1}}}, "did you mean 'value'"),
        ({"weights": {"adversaril": 1}}, "did you mean 'adversarial'"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    recipe = {"base": "default-rpd", **changes}
    if recipe["base"] is None:
        del recipe["base"]
    with pytest.raises(InvalidInput, match=message):
        DABand(context_shape=(4,), n_arms=2, recipe=recipe, device="cpu")
