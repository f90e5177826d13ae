import math

import numpy as np
import pytest

from daband.bench._bench import bench
from daband.bench._records import adjust_holm, compare_paired, read_results
from daband.bench._settings import load_experiment
from daband.bench._variants import compute_ablation_rows, list_ablation_runs
from daband.bench.report._method_summaries import ABLATION_BASES as BASES
from daband.bench.report._method_summaries import ABLATION_LETTERS as COMBINATIONS
from daband.errors import InvalidInput
from daband.neural._recipes import resolve_recipe
from daband.neural._term import terms


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
    assert all(name.startswith("source_") for name in on["none"])
    for letters in COMBINATIONS[1:]:
        together = on["none"].union(*(on[letter] for letter in letters))
        assert on[letters] == together
    assert on["R"] - on["none"] == {"regression_error"}
    assert on["P"] - on["none"] == {"predicted_reward"}
    assert "adversarial" in on["D"]
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
    alone = small.model_copy(update={"methods": {"nlinucb": {"recipe": recipe, "device": "cpu"}}})
    ablated, plain = bench([*none, *alone.runs(["nlinucb"], [3])], tmp_path)
    played = [
        dict(np.load(tmp_path / record["folder"] / "rounds.npz")) for record in (ablated, plain)
    ]
    for column in ("arm", "reward", "regret"):
        np.testing.assert_array_equal(played[0][column], played[1][column])
    for name in ("target_accuracy", "per_class", "source_regret"):
        assert ablated[name] == plain[name]


def test_an_ablation_runs_resumes_and_is_tested_by_seed(small, tmp_path):
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
    rows = {row.letters: row for row in compute_ablation_rows(read_results(tmp_path))}
    assert tuple(rows) == kept
    assert rows["RPD"].paired_test is None
    assert rows["RPD"].summary.metric.field == "target_value"  # the pair pays real numbers
    score = {
        (record["variant"].partition(":")[2], record["seed"]): record["target_value"]
        for record in records
    }
    tests = []
    for letters in kept[:-1]:
        expected = compare_paired(
            *([score[kind, seed] for seed in (0, 1)] for kind in (letters, "RPD"))
        )
        assert rows[letters].paired_test == expected
        tests.append(expected.p_value)
    assert [rows[letters].holm_p_value for letters in kept[:-1]] == adjust_holm(tests)


def record(letters, seed, accuracy, base="paper"):
    return {
        "pair": "p",
        "method": "daband",
        "variant": f"{base}:{letters}",
        "seed": seed,
        "target_accuracy": accuracy,
        "source_regret": None,
        "rounds": 1,
    }


def test_the_family_of_the_correction_is_the_base():
    rng = np.random.default_rng(0)
    records = [
        record(letters, seed, rng.normal(), base)
        for base in BASES
        for letters in COMBINATIONS
        for seed in range(4)
    ]
    rows = compute_ablation_rows(records)
    for base in BASES:
        mine = [row for row in rows if row.base == base and row.paired_test]
        assert [row.holm_p_value for row in mine] == adjust_holm(
            [row.paired_test.p_value for row in mine]
        )
        assert len(mine) == 7


def test_what_is_missing_is_left_out():
    rows = {
        row.letters: row
        for row in compute_ablation_rows([record("R", 0, 0.5), record("RPD", 1, 0.7)])
    }
    assert rows["R"].paired_test is None  # no seed in common
    assert rows["R"].holm_p_value is None
    single = compute_ablation_rows(
        [record("R", 0, 0.5), record("RPD", 0, 0.7), {**record("x", 0, 1.0), "variant": "default"}]
    )
    assert [row.letters for row in single] == ["R", "RPD"]
    assert math.isnan(single[0].paired_test.p_value)
    assert single[0].holm_p_value is None


def test_an_ablation_without_target_labels_has_no_score():
    full, *others = compute_ablation_rows(
        [record(letters, 0, None) for letters in ("RPD", "R", "none")]
    )
    assert [row.summary.score.value for row in (full, *others)] == [None] * 3
    assert all(row.paired_test is None for row in others)


def test_an_unknown_base(small):
    with pytest.raises(
        InvalidInput, match=r"no ablation of the recipe 'nlinucb' \(known: paper, default-rpd\)"
    ):
        list_ablation_runs(small, bases=["nlinucb"])
