from dataclasses import replace

import numpy as np
import pytest

from daband.bench import bench, load_experiment
from daband.bench._ablation import ABLATION_BASES as BASES
from daband.bench._ablation import ABLATION_LETTERS as COMBINATIONS
from daband.bench._ablation import list_ablation_runs
from daband.errors import InvalidInput
from daband.neural import terms
from daband.neural._recipes import resolve_recipe


@pytest.fixture
def small(tiny_experiment):
    recipe = {"base": "paper", "learning": {"learning_rate": 1e-3}}
    return tiny_experiment(methods={"daband": {"device": "cpu", "recipe": recipe}})


def test_every_combination_of_every_base_with_every_seed(small):
    specs = list_ablation_runs(small)
    variants = {
        f"{base}:{letters}" for base in ("paper", "default-rpd") for letters in COMBINATIONS
    }
    assert {spec.variant for spec in specs} == variants
    assert len(specs) == len({spec.folder_name for spec in specs}) == 32
    assert all(":" not in spec.folder_name and spec.method == "daband" for spec in specs)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("shape", [(3, 28, 28), (7,)])
def test_the_letters_stand_for_all_that_is_added_to_neural_linucb(base, shape, small):
    recipes = {
        spec.variant.partition(":")[2]: resolve_recipe(spec.policy["recipe"], context_shape=shape)
        for spec in list_ablation_runs(small, bases=[base], seeds=[0])
    }
    on = {
        letters: {name for name, weight in recipe.weights.items() if weight}
        for letters, recipe in recipes.items()
    }
    assert all(name in ("source_regret", "source_cross_entropy") for name in on["none"])
    for letters in COMBINATIONS[1:]:
        together = on["none"].union(*(on[letter] for letter in letters))
        assert on[letters] == together
    assert on["R"] - on["none"] == {"regression_error"}
    assert on["P"] - on["none"] == {"predicted_reward"}
    assert "data_divergence" in on["D"]
    assert all(terms.get(name).needs_target for name in on["D"] - on["none"])


def test_own_changes_apply_to_the_base_they_name(small):
    learning = {
        spec.variant: (
            resolve_recipe(spec.policy["recipe"], context_shape=(4,)).learning.learning_rate
        )
        for spec in list_ablation_runs(small, seeds=[0])
    }
    assert {learning[f"paper:{letters}"] for letters in COMBINATIONS} == {1e-3}
    assert {learning[f"default-rpd:{letters}"] for letters in COMBINATIONS} == {1e-3}  # its own
    paper = load_experiment("paper-s2rda49")
    for spec in list_ablation_runs(paper, bases=["paper"], seeds=[0]):
        recipe = resolve_recipe(spec.policy["recipe"], context_shape=(3, 224, 224))
        assert (recipe.alpha, recipe.learning.learning_rate) == (0.01, 1e-3)


def test_none_is_neural_linucb_to_the_bit(small, tmp_path):
    """With everything off, the ablated DABand plays the rounds of Neural-LinUCB of the same
    recipe.
    """
    none = [
        spec
        for spec in list_ablation_runs(small, bases=["paper"], seeds=[3])
        if spec.variant == "paper:none"
    ]
    recipe = {"base": "paper", "learning": {"learning_rate": 1e-3}}
    alone = replace(small, methods={"nlinucb": {"recipe": recipe, "device": "cpu"}})
    ablated, plain = bench([*none, *alone.runs(["nlinucb"], [3])], tmp_path)
    played = [
        dict(np.load(tmp_path / record["folder"] / "rounds.npz")) for record in (ablated, plain)
    ]
    for column in ("arm", "reward", "regret"):
        np.testing.assert_array_equal(played[0][column], played[1][column])
    for name in ("target_accuracy", "per_class", "source_regret"):
        assert ablated[name] == plain[name]


def test_an_ablation_runs_and_resumes(small, tmp_path):
    kept = ("none", "R", "RPD")
    specs = [
        spec
        for spec in list_ablation_runs(small, bases=["paper"])
        if spec.variant.partition(":")[2] in kept
    ]
    records = bench(specs, tmp_path)
    events = []
    assert bench(specs, tmp_path, on_event=events.append) == records
    assert {event.kind for event in events} == {"found"}


def test_an_unknown_base(small):
    with pytest.raises(InvalidInput, match=r"'nlinucb' \(known: paper, default-rpd\)"):
        list_ablation_runs(small, bases=["nlinucb"])
