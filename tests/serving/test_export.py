"""Exported files: whole or refused, free of what was trained on, readable by later versions."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import daband
from daband.base._tensor_files import read_tensor_file, write_tensor_file
from daband.linear._predictor import ContextStep
from daband.serving._deployed_policy import FORMAT
from tests.serving.kinds import KINDS, table_policy, trained


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "p.daband"
    policy, *_ = trained("linucb-standardise")
    daband.export(policy, path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_nothing_that_was_trained_on_is_inside(kind, tmp_path):
    policy, contexts, rewards, ids = trained(kind)
    path = tmp_path / "p.daband"
    daband.export(policy, path, reference=contexts, assessment={"accuracy": 0.5})
    content = path.read_bytes()
    for row in contexts.reshape(-1, *policy.context_shape)[:: len(contexts) // 50]:
        flat = row.reshape(-1)
        for kept in (
            ("<f8", "<f4", "<f2", "|u1") if flat.dtype == np.uint8 else ("<f8", "<f4", "<f2")
        ):
            assert flat[:16].astype(kept).tobytes() not in content
        if flat.dtype.kind == "f":
            for number in flat:
                assert np.float64(number).tobytes() not in content
                assert repr(float(number)).encode() not in content
    moments = policy.reward_moments
    standardised = (rewards - moments.centre) / moments.scale
    # these are in every file
    for reward in {*rewards.tolist(), *standardised.tolist()} - {0.0, 1.0}:
        assert np.float64(reward).tobytes() not in content
        assert repr(float(reward)).encode() not in content
    assert not any(name.encode() in content for name in ids)
    assert b"patient" not in content


def test_nothing_of_a_table_but_its_categories_is_inside(tmp_path):
    pytest.importorskip("polars")
    policy, pair = table_policy()
    path = tmp_path / "p.daband"
    daband.export(policy, path, pair=pair)
    content = path.read_bytes()
    for row in np.concatenate(
        [pair.target.read(np.arange(len(pair.target))), pair.source.read(np.arange(100))]
    ):
        for kept in ("<f8", "<f4"):
            assert row.astype(kept).tobytes() not in content
        assert row[1].tobytes() not in content  # the income, which is everyone's own


def test_other_files_are_refused_by_name(exported, tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=2)
    policy.save(tmp_path / "saved")
    with pytest.raises(daband.CheckpointError, match=r"/saved .*exported"):
        daband.load_deployed(tmp_path / "saved")
    (tmp_path / "exported").write_bytes(exported)
    with pytest.raises(daband.CheckpointError, match=r"/exported .*saved"):
        daband.load(tmp_path / "exported")
    with pytest.raises(daband.CheckpointError, match="nowhere"):
        daband.load_deployed(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("predictor/theta", np.zeros((2, 7))),
        ("predictor/inverse", np.zeros((3, 5, 7))),
        ("predictor/theta", np.full((3, 7), np.nan)),
        ("predictor/theta", np.full((3, 7), np.inf)),
        ("predictor/theta", np.zeros((3, 0))),
        ("predictor/steps/0/transform/mean", np.zeros(3)),
        ("predictor/theta", None),
    ],
    ids=[
        "too few arms",
        "no square",
        "not a number",
        "infinite",
        "empty",
        "no mean",
        "missing",
    ],
)
def test_a_file_that_does_not_hold_what_it_promises(name, value, exported, tmp_path):
    """A digest says that nothing has changed since it was written, not that it was written by
    daband.
    """
    path = tmp_path / "p.daband"
    path.write_bytes(exported)
    header, arrays = read_tensor_file(path, FORMAT)
    header = {key: own for key, own in header.items() if key not in ("digest", "version")}
    arrays = (
        {**arrays, name: value}
        if value is not None
        else {k: own for k, own in arrays.items() if k != name}
    )
    write_tensor_file(path, FORMAT, header, arrays)
    with pytest.raises(daband.CheckpointError, match=r"p\.daband"):
        daband.load_deployed(path)


def written(path, header, arrays):
    """A file with a valid digest, whoever wrote it."""
    header = {key: own for key, own in header.items() if key not in ("digest", "version")}
    write_tensor_file(path, FORMAT, header, arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"exploration": {"rule": "ucb", "alpha": 0.1, "epsilon": 7}},
        {"exploration": {"rule": "ucb", "alpha": 0.1, "epsilon": -0.5}},
        {"exploration": {"rule": "ucb", "alpha": 1e400, "epsilon": 0}},
        {"exploration": {"rule": "best", "alpha": 0.1, "epsilon": 0}},
        {"context_shape": [5]},
        {"context_shape": [2**40]},
        {"n_arms": 4},
        {"arms": "shared"},
        {"arm_names": ["a", "a", "b"]},
        {"scaling": [0, 1e400, 1]},
        {"predictor": {}},
        {"predictor": {"kind": "unknown"}},
        {"seed": -1},
        {"assessment": json.loads("[" * 400 + "]" * 400), "predictor": 3},
    ],
    ids=str,
)
def test_a_crafted_header_is_refused_when_it_is_loaded(change, exported, tmp_path, monkeypatch):
    """An epsilon of 7 gave a propensity of 2.33."""
    path = tmp_path / "p.daband"
    path.write_bytes(exported)
    header, arrays = read_tensor_file(path, FORMAT)
    plain = json.dumps
    monkeypatch.setattr(
        json, "dumps", lambda value, **options: plain(value, **{**options, "allow_nan": True})
    )
    written(path, {**header, **change}, arrays)
    with pytest.raises(daband.CheckpointError, match=r"p\.daband"):
        daband.load_deployed(path)


def test_a_header_nested_too_deeply_is_refused(exported, tmp_path):
    path = tmp_path / "p.daband"
    path.write_bytes(exported)
    header, arrays = read_tensor_file(path, FORMAT)
    written(path, {**header, "assessment": "DEEP"}, arrays)
    content = path.read_bytes()
    deep = b"[" * 100_000 + b"]" * 100_000
    length = int.from_bytes(content[:8], "little") + len(deep) - len(b'\\"DEEP\\"')
    path.write_bytes(length.to_bytes(8, "little") + content[8:].replace(b'\\"DEEP\\"', deep))
    with pytest.raises(daband.CheckpointError, match=r"p\.daband"):
        daband.load_deployed(path)


def test_contexts_larger_than_those_of_the_program_are_refused_before_they_are_made(tmp_path):

    class Small(torch.nn.Module):
        def forward(self, contexts):
            return contexts

    policy = daband.NeuralLinUCB(context_shape=(4,), n_arms=2, recipe="small", encoder=Small())
    daband.export(policy, tmp_path / "p", domain="source")
    header, arrays = read_tensor_file(tmp_path / "p", FORMAT)
    header["predictor"]["steps"][0]["shape"] = [2**30, 2**30]
    written(tmp_path / "p", header, arrays)
    with pytest.raises(daband.CheckpointError, match="describes: "):
        daband.load_deployed(tmp_path / "p")


class Encoder(torch.nn.Module):
    """A custom encoder with batch norm, whose state has a tensor without dimensions."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()
        )

    def forward(self, contexts):
        return self.layers(contexts.float())


def test_a_custom_encoder_with_batch_norm_is_exported_and_loaded(tmp_path):
    """Before, a file was written that could not be loaded: num_batches_tracked had the
    shape (1,).
    """
    policy = daband.NeuralLinUCB(context_shape=(4,), n_arms=2, recipe="small", encoder=Encoder())
    contexts = np.random.default_rng(0).normal(size=(20, 4))
    policy.update(contexts, [0, 1] * 10, contexts[:, 0] > 0)
    policy.adapt()
    daband.export(policy, tmp_path / "p.daband", domain="source")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    np.testing.assert_allclose(
        deployed.decide(contexts).mean, policy.decide(contexts).mean, rtol=1e-4, atol=1e-6
    )


class Halved:
    """A step that is another one in files."""

    kind = "halved"

    def __call__(self, rows):
        return rows

    def freeze(self):
        transform = daband.PCA(2)
        transform.fit(np.random.default_rng(0).normal(size=(50, 2)))
        return transform.get_step()


class Forgetful(daband.LinUCB):
    """A policy whose file predicts otherwise."""

    name = "forgetful"

    def _predictor(self, domain):
        return super()._predictor(domain).after(ContextStep((2,), Halved()))


def test_a_file_that_decides_otherwise_than_the_policy_is_not_written(tmp_path):
    policy = Forgetful(context_shape=(2,), n_arms=2, seed=0)
    policy.update(np.eye(2), [0, 1], [1.0, 0.0])
    (tmp_path / "p.daband").write_text("an earlier file")
    with pytest.raises(daband.CheckpointError, match=r"differ by 0\.2"):
        daband.export(policy, tmp_path / "p.daband")
    assert (tmp_path / "p.daband").read_text() == "an earlier file"
    assert [path.name for path in tmp_path.iterdir()] == ["p.daband"]


@pytest.mark.parametrize(
    "names", [5, [None, 1], ["a", 1], "ab", ["a"], ["a", "a"], {"a": 1}], ids=str
)
def test_arm_names_that_are_none(names, tmp_path):
    policy = daband.Constant(context_shape=(2,), n_arms=2)
    with pytest.raises(daband.InvalidInput, match="arm_names"):
        daband.export(policy, tmp_path / "p.daband", arm_names=names)


def test_equal_policies_give_equal_files(tmp_path):
    for name in "ab":
        daband.export(trained("linucb-pca")[0], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.slow
def test_files_load_without_torch(tmp_path):
    """On numpy and safetensors alone; only networks that have no plain form need torch."""
    files = []
    for kind in ("constant-shared", "random", "linucb-pca", "trees", "daband", "daband-images"):
        policy, contexts, *_ = trained(kind)
        files.append(str(tmp_path / kind))
        daband.export(policy, files[-1], reference=contexts)
    script = f"""
import sys
hidden = "torch scipy sklearn typer rich pydantic matplotlib PIL polars pandas skimage pyarrow".split()
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
import numpy as np
import daband
for path in {files!r}:
    deployed = daband.load_deployed(path)
    shape = deployed.reader.shape
    deployed.decide(np.zeros(shape))
    if deployed.reference is not None:
        deployed.monitor().decide(np.zeros(shape))
print("loaded", "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded", "False"]


def test_a_greedy_file_leaves_large_matrices_out(tmp_path):
    draw = np.random.default_rng(0)
    contexts = draw.normal(size=(96, 700))
    policy = daband.LinUCB(context_shape=(700,), n_arms=5, transform=daband.Standardise(), seed=0)
    policy.prepare(contexts)
    policy.update(contexts, draw.integers(0, 5, 96), draw.integers(0, 2, 96))
    sizes = []
    for explore in ("ucb", "greedy"):
        path = tmp_path / f"{explore}.daband"
        daband.export(policy, path, explore=explore, reference=contexts)
        deployed = daband.load_deployed(path)
        decision = deployed.decide(contexts)
        assert np.array_equal(decision.arm, policy.decide(contexts, rule=explore).arm)
        assert (decision.bonus > 0).all() == (explore == "ucb")
        # it counts bonuses too
        assert np.array_equal(deployed.monitor().decide(contexts).arm, decision.arm)
        sizes.append(path.stat().st_size)
    assert sizes[0] > 9e6 > 4 * sizes[1]


def test_large_matrices_are_in_single_precision(tmp_path):
    draw = np.random.default_rng(0)
    contexts, held = draw.normal(size=(2, 400, 600))
    policy = daband.LinUCB(context_shape=(600,), n_arms=4, transform=daband.Standardise(), seed=0)
    policy.prepare(contexts)
    policy.update(contexts, draw.integers(0, 4, 400), draw.random(400))
    daband.export(policy, tmp_path / "p.daband", explore="ucb")
    assert (tmp_path / "p.daband").stat().st_size < 1.1 * 4 * 4 * 601 * 601
    deployed = daband.load_deployed(tmp_path / "p.daband")
    truth = policy.decide(held, rule="ucb")
    found = deployed.decide(held)
    np.testing.assert_allclose(found.mean, truth.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.bonus, truth.bonus, rtol=0, atol=1e-6)
    assert np.array_equal(found.arm, truth.arm)
