"""A policy that decides by a tree."""

import base64
import json

import numpy as np
import pytest

import daband
from daband.errors import CheckpointError, InvalidInput
from daband.serving._rule import Split, to_state

TREE = to_state(
    Split("a", "below", 0.2, False, 0, 0.2, Split("b", "equals", "x", False, 1, 0.5, 0, 1), 2)
)


def make_policy(**settings):
    policy = daband.RulePolicy(context_shape=(2,), n_arms=3, tree=TREE, **settings)
    policy.set_prior(np.eye(3), np.full((3, 3), 10.0))
    return policy


def test_contexts_go_to_their_leaves():
    policy = make_policy()
    contexts = [[0.1, 1.0], [0.1, 0.0], [0.2, 1.0]]  # 0.2 is not below 0.2
    assert policy.decide(contexts).arm.tolist() == [0, 1, 2]
    assert policy.rule.leaf_arms == ("0", "1", "2")


def test_rewards_are_averaged_with_the_rounds_of_the_tree():
    policy = make_policy()
    policy.update([[0.1, 1.0]] * 10, [1] * 10, [4.0] * 10)
    assert policy.decide([[0.1, 1.0]]).mean[0].tolist() == pytest.approx([1.0, 2.0, 0.0])
    assert policy.counts.tolist() == [30, 40, 30]


def test_a_json_file_restores_the_policy(tmp_path):
    policy = make_policy(epsilon=0.1)
    policy.update([[0.1, 1.0]], [1], [4.0], ids=["first"])
    policy.save(tmp_path / "rules.json")
    loaded = daband.load(tmp_path / "rules.json")
    assert loaded.rule == policy.rule
    policy.save(tmp_path / "a.safetensors")
    loaded.save(tmp_path / "b.safetensors")
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {"version": 0},
        "",
        "AAAA",
        # such a type would need 1.9 GB for 24 numbers
        {
            "version": 4,
            "settings": make_policy().settings() | {"policy": "rules"},
            "notes": {},
            "arrays": {"policy/prior_means": ["S100000000", [0] * 24]},
        },
    ],
)
def test_other_json_files_are_refused(tmp_path, saved):
    (tmp_path / "rules.json").write_text(json.dumps({"daband": saved}))
    with pytest.raises(CheckpointError, match=r"rules\.json"):
        daband.load(tmp_path / "rules.json")
    (tmp_path / "rules.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"rules\.json"):
        daband.load(tmp_path / "rules.json")


def test_a_json_file_has_a_digest(tmp_path):
    path = tmp_path / "rules.json"
    make_policy().save(path)
    content = json.loads(path.read_text())
    saved = bytearray(base64.b64decode(content["daband"]))
    saved[-1] ^= 1
    path.write_text(json.dumps({**content, "daband": base64.b64encode(saved).decode()}))
    with pytest.raises(CheckpointError, match="digest"):
        daband.load(path)


def test_a_damaged_tree_is_refused():
    with pytest.raises(InvalidInput, match="tree"):
        daband.RulePolicy(context_shape=(2,), n_arms=3, tree={"column": "a"})
