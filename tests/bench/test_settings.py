"""What the shipped presets say."""

import pytest

from daband.bench import load_experiment, preset_names
from daband.bench._methods import build_policy, list_methods


def test_every_preset_says_what_it_is():
    for name in preset_names():
        assert len(load_experiment(name).describe()) > 10, name


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
