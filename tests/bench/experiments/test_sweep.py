import json

import numpy as np
import pytest

from daband._files import write_json
from daband.bench import _variants as sweep_module
from daband.bench._bench import bench
from daband.bench._records import read_results
from daband.bench._settings import Experiment, load_experiment
from daband.bench._variants import (
    SELECTION_RULES,
    Point,
    choices,
    measure,
    parse_grid,
    sweep_points,
    sweep_runs,
    write_sweep,
)
from daband.bench.report._method_summaries import summarise
from daband.errors import DataError, InvalidInput
from daband.evaluation._model_selection import CRITERIA
from daband.neural._recipes import resolve_recipe


@pytest.fixture
def small():
    return Experiment(
        pair="synthetic",
        episodes=2,
        episode_length=16,
        seeds=(0, 1),
        methods={"daband": {"device": "cpu", "recipe": "small"}},
    )


def test_a_rule_chooses_nothing_of_another_method_in_the_folder(small, tmp_path):
    grid = {"alpha": (0.1, 1.0)}
    for method in ("linucb", "constant"):
        records = bench(sweep_runs(small, grid=grid, method=method), tmp_path)
        points = sweep_points(records, measure(records, tmp_path))
        assert {point.summary.method for point in points} == {method}
        selected = write_sweep(tmp_path, rule="entropy", grid=grid, points=points, picked=choices(points))
        assert {record["method"] for record in selected} == {method}
    both = read_results(tmp_path)
    assert {record["method"] for record in both} == {"linucb", "constant"}
    assert {record["method"] for record in both if record["selection"] == "entropy"} == {"constant"}


class TestGrid:
    def test_values_are_read_as_they_are_written(self):
        assert parse_grid(["lambda=1,5,0.1", "alpha=1e-2"]) == {"lambda": (1, 5, 0.1), "alpha": (0.01,)}
        assert parse_grid(["recipe=paper,default"]) == {"recipe": ("paper", "default")}
        assert parse_grid(["x=true,[1, 2]"]) == {"x": (True, [1, 2])}

    @pytest.mark.parametrize("texts", [["lambda"], ["=1"], ["lambda="], ["lambda=1", "lambda=2"]])
    def test_nonsense_is_refused(self, texts):
        with pytest.raises(InvalidInput, match="--grid"):
            parse_grid(texts)

    def test_grids_multiply_and_each_key_finds_its_place(self, small):
        grid = {
            "lambda": (0, 5.0), "pseudo_labels": (0.25,), "recipe.learning.learning_rate": (1e-4,), "alpha": (0.3,),
            "episodes": (3,), "pair_options.noise": (0.2,),
        }  # fmt: skip
        specs = sweep_runs(small, grid=grid)
        assert len(specs) == 4
        assert {spec.variant for spec in specs} == {
            f"lambda={weight},pseudo_labels=0.25,learning_rate=0.0001,alpha=0.3,episodes=3,noise=0.2"
            for weight in (0, 5)
        }
        spec = next(spec for spec in specs if "lambda=5" in spec.variant)
        assert (spec.episodes, spec.pair_options, spec.policy["alpha"]) == (3, {"noise": 0.2}, 0.3)
        recipe = resolve_recipe(spec.policy["recipe"], context_shape=(3, 28, 28))
        before = resolve_recipe("small", context_shape=(3, 28, 28))
        assert recipe.weights["adversarial"].value == 5.0
        assert recipe.weights["adversarial"].ramp == before.weights["adversarial"].ramp  # the schedule stays
        assert recipe.weights["pseudo_labels"].value == 0.25
        assert recipe.learning.learning_rate == 1e-4
        assert small.methods["daband"]["recipe"] == "small"

    def test_the_papers_grid_is_in_its_presets(self):
        experiment = load_experiment("paper-digit")
        specs = sweep_runs(experiment, grid=experiment.grid, seeds=[0])
        weights = [
            resolve_recipe(spec.policy["recipe"], context_shape=(3, 28, 28)).weights["adversarial"] for spec in specs
        ]
        assert [weight.value for weight in weights] == [1, 5, 10, 15, 20]

    @pytest.mark.parametrize(
        ("grid", "method", "message"),
        [
            ({}, "daband", "nothing to sweep"),
            ({"alfa": (1,)}, "daband", "nothing called 'alfa'"),
            ({"lambda": (1,)}, "linucb", "has no recipe"),
            ({"lambda": (-1,)}, "daband", "weight must be"),
            ({"recipe.learning.learning_rat": (1,)}, "daband", "did you mean 'learning_rate'"),
            ({"recipe.alpha.beta": (1,)}, "daband", "number"),
            ({"recipe.weights.adversarail": (1,)}, "daband", "did you mean 'adversarial'"),
            ({"recipe.encoder.name": ("cnov",)}, "daband", "did you mean 'conv'"),
            ({"alpha": (1,)}, "lunicb", "unknown method"),
        ],
    )
    def test_what_cannot_be_swept_is_told_before_anything_runs(self, grid, method, message, small):
        with pytest.raises(InvalidInput, match=message):
            sweep_runs(small, grid=grid, method=method)


def test_forms_of_the_data_that_are_swept_are_written_down(monkeypatch, tmp_path):
    monkeypatch.setenv("DABAND_DATA", str(tmp_path))
    specs = sweep_runs(load_experiment("digit"), grid={"pair_options.form": ("auto", "released")}, seeds=[0])
    assert [spec.pair_options for spec in specs] == [{"form": "embedded"}, {"form": "released"}]


def test_a_sweep_from_runs_to_a_selection(small, tmp_path, monkeypatch):
    written = {}

    def noted(path, content):
        written[path.name] = (path.parent / ".results.lock").exists()
        write_json(path, content)

    monkeypatch.setattr(sweep_module, "write_json", noted)
    specs = sweep_runs(small, grid={"lambda": (0, 1)})
    records = bench(specs, tmp_path)
    values = measure(records, tmp_path)
    for record in records:
        kept = json.loads((tmp_path / record["folder"] / "criteria.json").read_text())
        assert set(kept) == set(CRITERIA)
        assert kept == values[record["folder"]]
    points = sweep_points(records, values)
    assert [point.summary.variant for point in points] == ["lambda=0", "lambda=1"]
    assert [point.summary.seeds for point in points] == [(0, 1), (0, 1)]
    picked = choices(points)
    assert [choice.rule for choice in picked] == list(SELECTION_RULES)
    for rule in SELECTION_RULES:
        written.clear()
        selected = write_sweep(tmp_path, rule=rule, grid={"lambda": (0, 1)}, points=points, picked=picked)
        assert written == {"results.json": True, "sweep.json": True}  # both under the folder's lock
        mine = next(choice for choice in picked if choice.rule == rule)
        assert [record["seed"] for record in selected] == [0, 1]
        for record in read_results(tmp_path):
            assert record["selection"] == (rule if record["variant"] == mine.variant else "none")
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert (content["selection"], content["grid"]) == ("oracle", {"lambda": [0, 1]})
    assert {choice["rule"] for choice in content["choices"]} == set(SELECTION_RULES)


def test_criteria_are_read_and_not_computed_twice(small, tmp_path):
    records = bench(sweep_runs(small, grid={"lambda": (0,)}, seeds=[0]), tmp_path)
    measure(records, tmp_path)
    path = tmp_path / records[0]["folder"] / "criteria.json"
    path.write_text(json.dumps(dict.fromkeys(CRITERIA, 0.125)))
    assert set(measure(records, tmp_path)[records[0]["folder"]].values()) == {0.125}
    path.write_text("{}")  # of an older version: computed anew
    assert set(measure(records, tmp_path)[records[0]["folder"]]) == set(CRITERIA)


def test_criteria_do_not_change_with_target_labels(small, tmp_path, monkeypatch):
    """Other rewards in the target, the same criteria: nothing that is measured looks at them."""
    from dataclasses import replace

    import daband.bench._variants as module

    records = bench(sweep_runs(small, grid={"lambda": (1,)}, seeds=[0]), tmp_path)
    honest = measure(records, tmp_path)
    (tmp_path / records[0]["folder"] / "criteria.json").unlink()
    load = module.load
    monkeypatch.setattr(
        module, "load", lambda *args, **options: replace(load(*args, **options), target_test=None, target_labelled=None)
    )
    assert measure(records, tmp_path) == honest


def point(variant, accuracy, **values):
    measured = {**dict.fromkeys(CRITERIA), **values}
    record = {"pair": "p", "method": "daband", "variant": variant, "seed": 0, "target_accuracy": accuracy, "rounds": 1}
    return Point(*summarise([record]), measured)


def test_each_rule_picks_by_its_own_direction():
    points = [
        point("a", 0.5, **{"source-validation": 0.9, "entropy": 1.0}),
        point("b", 0.8, **{"source-validation": 0.7, "entropy": 0.2}),
        point("c", 0.7, **{"source-validation": 0.8, "entropy": 0.4}),
    ]
    picked = {choice.rule: choice for choice in choices(points)}
    assert set(picked) == {"source-validation", "entropy", "oracle"}  # the others have no values here
    assert (picked["source-validation"].variant, picked["entropy"].variant, picked["oracle"].variant) == ("a", "b", "b")
    assert picked["source-validation"].below_best == pytest.approx(0.3)
    assert picked["source-validation"].rank_correlation == pytest.approx(-1.0)
    assert picked["entropy"].rank_correlation == pytest.approx(1.0)
    assert picked["oracle"].rank_correlation is None


def test_without_target_labels_rules_pick_and_the_oracle_does_not():
    points = [point("a", None, entropy=1.0), point("b", None, entropy=0.5)]
    (only,) = choices(points)
    assert (only.rule, only.variant, only.score, only.below_best) == ("entropy", "b", None, None)


def test_a_rule_without_values_cannot_choose(tmp_path):
    points = [point("a", 0.5, entropy=1.0)]
    with pytest.raises(DataError, match="'mutual-information' has no value"):
        write_sweep(tmp_path, rule="mutual-information", grid={}, points=points, picked=choices(points))


def test_the_seeds_of_a_point_are_averaged():
    records = [
        {
            "pair": "p",
            "method": "daband",
            "variant": "v",
            "seed": seed,
            "target_accuracy": seed / 10,
            "source_regret": 2.0,
            "rounds": 1,
            "folder": f"{seed}",
        }
        for seed in (1, 2)
    ]
    values = {f"{seed}": {**dict.fromkeys(CRITERIA, float(seed)), "entropy": None} for seed in (1, 2)}
    (only,) = sweep_points(records, values)
    assert only.criteria == {**dict.fromkeys(CRITERIA, 1.5), "entropy": None}
    assert only.summary.score.value == pytest.approx(0.15)
    assert only.summary.score.deviation == pytest.approx(np.std([0.1, 0.2], ddof=1))
