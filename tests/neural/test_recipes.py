"""What ``recipe=`` may be: a name, a change of a named recipe, or a recipe in full."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import daband
from daband.errors import InvalidInput
from daband.features import Shift
from daband.neural import FeatureNetwork, Weight, recipe_for
from daband.neural._learner import compute_weights
from daband.neural._recipes import recipes, resolve_recipe
from daband.neural.daband import DABand
from daband.neural.encoders._encoder import encoders
from daband.neural.neural_linucb import NeuralLinUCB
from daband.policies import load_policy
from tests.registries import temporarily

SHAPE = (3, 28, 28)


def changed(**changes):
    return resolve_recipe({"base": "default-rpd", **changes}, context_shape=SHAPE)


def test_a_number_keeps_the_schedule_and_a_table_changes_it():
    before = recipe_for("default-rpd", context_shape=SHAPE)
    after = changed(weights={"data_divergence": 5, "pseudo_labels": {"start": 10}})
    assert after.weights["data_divergence"] == Weight(5, ramp=0.3125)
    assert after.weights["pseudo_labels"] == Weight(0.5, start=10)
    untouched = {"data_divergence", "pseudo_labels"} ^ set(before.weights)
    assert all(after.weights[name] == before.weights[name] for name in untouched)
    assert (after.encoder, after.learning, after.replay) == (
        before.encoder,
        before.learning,
        before.replay,
    )


def test_groups_are_changed_in_part():
    after = changed(
        alpha=0.01,
        learning={"learning_rate": 1e-4, "augmentation": {"shift": 1}},
        encoder={"options": {"channels": [4, 6]}, "dense": {"dimension": 16}},
    )
    before = recipe_for("default-rpd", context_shape=SHAPE)
    assert (after.alpha, after.learning.learning_rate, after.learning.augmentation.shift) == (
        0.01,
        1e-4,
        1,
    )
    assert after.learning.augmentation.contrast == before.learning.augmentation.contrast
    assert after.encoder.options["channels"] == (4, 6)
    assert after.encoder.dense.dimension == 16
    assert after.encoder.dense.hidden == before.encoder.dense.hidden


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("given", [str, lambda name: {"base": name, "learning": {"steps": 3}}])
def test_a_name_given_to_neural_linucb_means_the_recipe_without_the_targets_terms(name, given):
    policy = NeuralLinUCB(
        context_shape=(4,), n_arms=2, recipe=given(name), device="cpu", shift="style"
    )
    assert all(term in ("source_regret", "source_cross_entropy") for term in policy.recipe.weights)
    theirs = DABand(
        context_shape=(4,), n_arms=2, recipe=given(name), device="cpu", shift="style"
    ).recipe
    assert set(theirs.weights) > set(policy.recipe.weights)
    assert theirs.source_only() == policy.recipe


def test_a_recipe_in_full_is_used_as_it_is_also_from_a_file(tmp_path):
    recipe = recipe_for("default", context_shape=(4,))
    policy = NeuralLinUCB(context_shape=(4,), n_arms=2, recipe=recipe, device="cpu")
    assert policy.recipe == recipe
    policy.save(tmp_path / "policy.safetensors")
    assert load_policy(tmp_path / "policy.safetensors").recipe == recipe


def test_a_change_without_a_base_changes_the_default():
    style = Shift.of("style")
    default = resolve_recipe("default", context_shape=(4,), shift=style)
    for changes in ({"weights": {"data_divergence": 3}}, {"learning": {"steps": 3}}, {}):
        policy = DABand(context_shape=(4,), n_arms=2, recipe=changes, device="cpu", shift=style)
        assert policy.recipe == default.changed(changes)
    alone = NeuralLinUCB(
        context_shape=(4,), n_arms=2, recipe={"learning": {"steps": 3}}, device="cpu"
    ).recipe
    assert (set(alone.weights), alone.learning.steps) == ({"source_cross_entropy"}, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "papr"}, "'papr'; .*'paper'"),
        (
            {"learning": {"learning_rat": 1}},
            r"'learning\.learning_rat'; .*'learning_rate'",
        ),
        ({"lerning": {}}, "'lerning'; .*'learning'"),
        ({"learning": 3}, "'learning' .*mapping"),
        ({"learning": {"steps": "many"}}, r"'learning\.steps' .*'many'"),
        ({"weights": 3}, "weights .*mapping"),
        ({"weights": {"data_divergence": -1}}, "value .*>= 0, .*-1$"),
        ({"weights": {"data_divergence": {"valu": 1}}}, "valu'; .*'value'"),
        ({"weights": {"data_divergenc": 1}}, "'data_divergenc'; .*'data_divergence'"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    recipe = {"base": "default-rpd", **changes}
    with pytest.raises(InvalidInput, match=message):
        DABand(context_shape=(4,), n_arms=2, recipe=recipe, device="cpu")


class Tanh(FeatureNetwork):
    """One layer, with an option of its own and none of the built-in networks' options."""

    def __init__(self, *, context_shape, width=16):
        super().__init__()
        self.context_shape = tuple(context_shape)
        self.width = width
        self.layer = torch.nn.Linear(math.prod(context_shape), width)

    def forward(self, contexts, *, rows_per_domain):
        return torch.tanh(self.layer(contexts.flatten(1)))


def test_another_network_begins_without_the_options_of_the_one_before():
    with temporarily(encoders, "tanh", Tanh):
        for base in ("default", "small", "paper"):
            changed = resolve_recipe(
                {"base": base, "encoder": {"name": "tanh"}}, context_shape=(6,)
            )
            assert changed.encoder.options == {}
        wide = {"base": "small", "encoder": {"name": "tanh", "options": {"width": 8}}}
        policy = daband.DABand(context_shape=(6,), n_arms=2, recipe=wide, seed=0)
        assert policy.select([[0.0] * 6]).arm.shape == (1,)
    same = resolve_recipe({"base": "default", "encoder": {"name": "mlp"}}, context_shape=(6,))
    assert same.encoder.options == {"statistics": "source", **PLAIN}


def test_a_setting_of_the_network_in_the_wrong_place_is_sent_to_its_options():
    with pytest.raises(InvalidInput, match=r"'encoder\.widths'; .* encoder\.options"):
        resolve_recipe({"encoder": {"widths": [8]}}, context_shape=(6,))


PLAIN = {"normalise_input": True, "normalise_hidden": False}
"""The network for vectors where nothing is aligned."""


@pytest.mark.parametrize(
    ("shift", "terms", "options"),
    [
        (None, set(), {"statistics": "source"}),
        ("covariate", set(), {"statistics": "source"}),
        ("units", set(), {}),
        (Shift.of("units", units=(2,)), set(), {}),
        ("style", {"data_divergence"}, {}),
        ("labels", set(), {"statistics": "source"}),
        ("style,labels", {"data_divergence"}, {}),
    ],
)
def test_what_may_differ_decides_statistics_and_terms(shift, terms, options, tmp_path):
    policy = DABand(context_shape=(4,), n_arms=2, device="cpu", shift=shift)
    assert set(policy.recipe.weights) == {"source_cross_entropy", *terms}
    plain = {} if terms else PLAIN
    assert policy.recipe.encoder.options == {**options, **plain}
    policy.save(tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert (loaded.shift, loaded.recipe) == (policy.shift, policy.recipe)


def test_a_term_that_is_asked_for_by_name_is_there_whatever_may_differ():
    policy = DABand(
        context_shape=(4,), n_arms=2, recipe={"weights": {"data_divergence": 3}}, device="cpu"
    )
    assert policy.recipe.weights["data_divergence"] == replace(_default_ramp(), value=3)
    for name in ("paper", "default-rpd"):
        assert (
            "data_divergence"
            in DABand(context_shape=(4,), n_arms=2, recipe=name, device="cpu").recipe.weights
        )


def _default_ramp():
    return recipe_for("default", context_shape=(4,)).weights["data_divergence"]


def test_the_default_for_images_is_the_recipe_that_was_measured():
    policy = DABand(context_shape=(3, 28, 28), n_arms=10, device="cpu")
    weights = {name: weight.value for name, weight in policy.recipe.weights.items()}
    assert weights == {
        "source_cross_entropy": 1.0,
        "data_divergence": 0.3,
        "target_diversity": 0.3,
        "pseudo_labels": 0.5,
    }
    assert policy.recipe.learning.gate_exponent == 8.0
    assert policy.recipe.learning.max_frequency_ratio == 1.0
    assert policy.recipe == recipe_for("default", context_shape=(3, 28, 28))
    policy.plan(300)
    assert policy.learner.run_steps == 19_200
    steps = np.array([5999, 6000, 19_200])
    data_divergence, pseudo_labels = (
        compute_weights(policy.recipe.weights[name], steps, 19_200).tolist()
        for name in ("data_divergence", "pseudo_labels")
    )
    assert data_divergence[0] < data_divergence[1] == data_divergence[2]
    assert pseudo_labels == [0.0, 0.5, 0.5]


def test_with_a_label_shift_the_frequencies_of_arms_are_estimated():
    recipe = DABand(context_shape=(3, 28, 28), n_arms=10, device="cpu", shift="style,labels").recipe
    default = recipe_for("default", context_shape=(3, 28, 28))
    assert recipe == default.changed({"learning": {"max_frequency_ratio": 4.0}})


def test_without_a_style_shift_networks_have_no_target_terms():
    recipe = DABand(context_shape=(3, 28, 28), n_arms=10, device="cpu", shift="labels").recipe
    assert set(recipe.weights) == {"source_cross_entropy"}


def test_the_papers_recipe_has_its_terms_and_pixels():
    paper = recipe_for("paper", context_shape=(3, 28, 28))
    assert paper.encoder.options["pixels"] == "symmetric"
    assert {name: weight.value for name, weight in paper.weights.items()} == {
        "source_regret": 1.0,
        "regression_error": 2.0,
        "predicted_reward": 1.0,
        "data_divergence": 1.0,
    }


def test_with_nothing_to_align_a_table_gets_fewer_steps():
    steps = {
        shift: (
            daband.DABand(
                context_shape=(5,), n_arms=2, shift=shift, device="cpu"
            ).recipe.learning.steps
        )
        for shift in ("covariate", "units", "style")
    }
    assert steps == {"covariate": 8, "units": 8, "style": 32}
    stated = daband.DABand(
        context_shape=(5,), n_arms=2, recipe={"learning": {"steps": 40}}, device="cpu"
    )
    assert stated.recipe.learning.steps == 40


@pytest.mark.parametrize("weight", [3, 0, {"value": 2.0}])
def test_a_part_of_a_recipe_changes_the_methods_own(weight):
    """A recipe without a base changes what the method does by default."""
    common = {"context_shape": (8,), "n_arms": 3, "device": "cpu", "shift": "style"}
    changed = daband.DABand(**common, recipe={"weights": {"data_divergence": weight}})
    before = daband.DABand(**common).recipe.settings()
    after = changed.recipe.settings()
    value = weight["value"] if isinstance(weight, dict) else weight
    expected = {**before["weights"].pop("data_divergence"), "value": float(value)}
    assert after["weights"].pop("data_divergence") == expected
    assert before == after
