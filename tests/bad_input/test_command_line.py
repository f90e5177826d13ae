"""Bad input to the command line: one message on stderr, exit code 1 or 2, no traceback, and nothing
written.
"""

import re
import sys

import pytest

from daband.cli._main import main

SMALL = ["--set", "pair_options.tiny=true", "--set", "episodes=2", "--set", "episode_length=8"]


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DABAND_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def check(arguments, leaves=()):
        monkeypatch.setattr(sys, "argv", ["daband", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        assert left.value.code in (1, 2), (left.value.code, shown)
        errors = shown.err + shown.out
        assert "Traceback" not in errors
        assert re.sub(r"\W+", "", shown.err), "there is no message"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(leaves)

    return check


SETTINGS = [
    "episodes",
    "=3",
    "episodes=0",
    "episodes=-1",
    "episodes=1.5",
    "episodes=many",
    "episodes=true",
    "episodes=[1]",
    "episodes.x=1",
    "episods=3",
    "episode_length=0",
    "episode_length=x",
    "episode_length=1.5",
    "seeds=3",
    "seeds=[-1]",
    "seeds=[a]",
    "seeds=[1.5]",
    "components=0",
    "components=x",
    "rule=best",
    "rule=1",
    "compare=linucb",
    "compare=[1]",
    "pair=syntetic",
    "pair=[]",
    "pair=1",
    "pair=*nothing*",
    "pair_options=3",
    "pair_options.n_arm=2",
    "policy=3",
    "policy.alfa=1",
    "policy.seed=3",
    "policy.n_arms=3",
    "methods=3",
    "methods.linucb=3",
    "methods.linucb.ridg=1",
    "methods.lincub.ridge=1",
    "methods.linucb.context_shape=[3]",
    "grid=3",
    "selection=3",
    "summary=3",
    "x.y.z=1",
    "..=1",
    "methods.=1",
    "policy.=1",
]


@pytest.mark.parametrize(
    ("command", "setting"),
    [("bench", setting) for setting in SETTINGS],
)
def test_settings(command, setting, refused):
    refused([command, "synthetic", *SMALL, "--set", setting])


RECIPES = [
    "recipe=defaults",
    "recipe=3",
    "recipe.weights=3",
    "recipe.weights.adverserial=3",
    "recipe.weights.data_divergence=high",
    "recipe.weights.data_divergence.valu=3",
    "recipe.learning.step=3",
    "recipe.learning=3",
    "recipe.learning.batch=0",
    "recipe.encoder.name=mpl",
    "recipe.replay.capacity=0",
    "recipe.base=nothing",
    "recipe.base=3",
    "recipes=default",
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(recipe, refused):
    refused(
        ["bench", "synthetic", "--methods", "daband", *SMALL, "--set", f"methods.daband.{recipe}"]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "syntetic"],
        ["bench", ""],
        ["bench", "none.toml"],
        ["bench", "../synthetic"],
        ["bench"],
        ["bench", "synthetic", "--methods", "lincub"],
        ["bench", "synthetic", "--methods", "linucb,,lincub"],
        ["bench", "synthetic", "--methods", "random-p"],
        ["bench", "synthetic", "--methods", "constant-p"],
        ["bench", "synthetic", "--methods", "linucb-p-p"],
        ["bench", "synthetic", "--methods", "-p"],
        ["bench", "synthetic", "--methods", ","],
        ["bench", "synthetic", "--methods", ""],
        ["bench", "synthetic", "--seeds", "x"],
        ["bench", "synthetic", "--seeds", ""],
        ["bench", "synthetic", "--seeds", "-1"],
        ["bench", "synthetic", "--seeds", "4-0"],
        ["bench", "synthetic", "--seeds", "1.5"],
        ["bench", "synthetic", "--seeds", "0-999999999999"],
        ["bench", "synthetic", "--jobs", "0"],
        ["bench", "synthetic", "--jobs", "x"],
        ["bench", "synthetic", "--job", "1"],
        ["demo", "--seeds", "x"],
        ["demo", "--jobs", "-1"],
        ["ablate", "syntetic"],
        ["ablate", "synthetic", "--seeds", "x"],
        ["report", "nowhere"],
        ["report", "."],
        ["data", "check", "syntetic"],
        ["data", "get", "syntetic"],
        ["data", "get"],
        ["data", "show", "syntetic"],
        ["data", "show", "synthetic", "--out", "picture.doc"],
        ["data", "show", "synthetic", "--set", "n_arm=3"],
        ["data", "show", "synthetic", "--set", "n_arms"],
        ["data", "show", "synthetic", "--set", "n_arms=0"],
        ["nothing"],
        ["--nothing"],
        ["methods", "linucb"],
    ],
    ids=" ".join,
)
def test_arguments(arguments, refused):
    refused(arguments)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "pair = ",
        "pair = 3",
        "pair = 'synthetic'\nepisodes = 0",
        "episodes = 3",
        "[[[",
        "pair = 'synthetic'\nx = 1",
        "pair = 'synthetic'\n[methods.lincub]\nalpha = 1",
        "pair = 'synthetic'\n[methods.linucb]\nalfa = 1",
        "pair = 'syn\\u0000thetic'",
        "pair = 'synthetic'\nseeds = 'all'",
        "pair = 'synthetic'\ncompare = []",
    ],
)
def test_files_of_settings(content, refused, tmp_path):
    (tmp_path / "mine.toml").write_text(content)
    refused(["bench", "mine.toml"], leaves=["mine.toml"])


def test_files_that_are_no_text(refused, tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    refused(["bench", "mine.toml"], leaves=["mine.toml"])


def test_a_folder_of_settings(refused, tmp_path):
    (tmp_path / "mine.toml").mkdir()
    refused(["bench", "mine.toml"], leaves=["mine.toml"])


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_where_runs_go(place, refused, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    refused(
        ["bench", "synthetic", "--methods", "random", *SMALL, "--out", place],
        leaves=["file", "link"],
    )


@pytest.mark.parametrize("content", ["", "{", "3", "[3]", '[{"folder": 3}]', "null", '"text"'])
@pytest.mark.parametrize("command", ["report"])
def test_folders_with_damaged_results(command, content, refused, tmp_path):
    (tmp_path / "results.json").write_text(content)
    refused([command, "."], leaves=["results.json"])


@pytest.mark.parametrize("weight", ["3", "0", "{value=2.0}"])
def test_a_part_of_a_recipe_changes_the_methods_own(weight, monkeypatch):
    """Correctly spelt: a partial recipe without a base means a change of what the method does by
    default.
    """
    from daband.bench import load_experiment

    (spec,) = load_experiment(
        "synthetic", [f"methods.daband.recipe.weights.data_divergence={weight}"]
    ).runs(["daband"], [0])
    from daband.neural.daband import DABand

    # which has the term
    common = {"context_shape": (8,), "n_arms": 3, "device": "cpu", "shift": "style"}
    changed = DABand(**common, **spec.policy)
    plain = DABand(**common)
    wanted = {"3": 3.0, "0": 0.0, "{value=2.0}": 2.0}[weight]
    before = plain.recipe.settings()
    after = changed.recipe.settings()
    assert after["weights"]["data_divergence"] == {
        **before["weights"]["data_divergence"],
        "value": wanted,
    }
    before["weights"].pop("data_divergence"), after["weights"].pop("data_divergence")
    assert before == after
