"""Experiments, and what the shipped presets say."""

from dataclasses import replace

import pytest

from daband.bench import Experiment, load_experiment, preset_names
from daband.bench._methods import build_policy, list_methods
from daband.domains._registry import pairs
from daband.errors import InvalidInput


def test_every_pair_has_a_preset_and_every_preset_a_pair_and_a_summary():
    assert set(pairs.names()) <= set(preset_names())
    for name in preset_names():
        experiment = load_experiment(name)
        assert experiment.pair in pairs
        assert len(experiment.summary) > 10, name


def test_the_hash_tells_settings_apart(tiny_experiment):
    small = tiny_experiment()
    specs = [*small.runs(), *replace(small, components=5).runs()]
    assert len({spec.config_hash for spec in specs}) == len(specs)
    assert [spec.config_hash for spec in small.runs()] == [
        spec.config_hash for spec in small.runs()
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes"),
        ({"episodes": "many"}, "episodes"),
        ({"episode_length": 1.5}, "episode_length"),
        ({"seeds": [-1]}, "seeds"),
        ({"compare": ["linucbp"]}, "method 'linucbp'"),
        ({"methods": {"linuc": {}}}, "'linuc'; did you mean 'linucb'"),
        ({"methods": {"linucb": {"alfa": 1}}}, "no setting 'alfa'; did you mean 'alpha'"),
        ({"methods": {"linucb": {"seed": 1}}}, "no setting 'seed'"),
        ({"pair_options": {"nois": 1}}, "no option 'nois'; did you mean 'noise'"),
        ({"pair": "syntetic"}, r"'syntetic'.*'synthetic'"),
    ],
)
def test_wrong_settings_are_named_before_the_first_run(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Experiment(**{"pair": "synthetic", **settings}).runs()
    with pytest.raises(InvalidInput, match=r"'syntetic'.*'synthetic'"):
        load_experiment("syntetic")


@pytest.mark.parametrize(
    ("name", "episodes", "alpha", "learning_rate"),
    [
        ("paper-digit", 300, 0.05, 1e-5),
        ("paper-visda17", 300, 0.05, 1e-5),
        ("paper-s2rda49", 100, 0.01, 1e-3),
    ],
)
def test_the_papers_hyperparameters(name, episodes, alpha, learning_rate):
    from daband.domains import load

    experiment = load_experiment(name)
    assert (experiment.episodes, experiment.episode_length, experiment.seeds) == (
        episodes,
        64,
        (0, 1, 2, 3, 4),
    )
    pair = load("digit", tiny=True)  # the settings do not depend on the images
    for spec in experiment.runs(seeds=[0]):
        assert spec.method in list_methods()
        policy = build_policy(spec.method, pair, seed=0, settings=spec.policy, n_components=4)
        settings = policy.settings()
        if spec.method not in ("random", "constant"):  # which are none of the paper's
            assert settings["alpha"] == alpha, spec.method
        if "recipe" in settings:
            recipe = settings["recipe"]
            assert recipe["learning"]["learning_rate"] == learning_rate
            assert recipe["replay"] == {**recipe["replay"], "sampling": "last", "unit_theta": True}
            on = {term for term, weight in recipe["weights"].items() if weight["value"]}
            assert (on == {"source_regret"}) == (spec.method != "daband")
