"""Exported files with an encoder inside: they decide as the policy does, and without torch."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import daband
from daband.errors import CheckpointError, InvalidInput
from daband.neural import DenseSettings, FeatureNetwork
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder
from daband.neural.encoders._frozen_encoder import TorchNetwork, to_onnx
from daband.serving._numpy_networks import load_part

SHAPE = (3, 16, 16)
SCRIPT = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "sentence_transformers", "polars", "sklearn", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import json
import daband
cases = json.loads(sys.argv[1])
print(json.dumps([daband.load_deployed(path).decide(rows).mean.tolist() for path, rows in cases]))
"""


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return self.layers(
            torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1)
        )[:, 0]


class Own(nn.Module):
    """A module whose code fixes the number of rows, with a branch and a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 12)
        self.register_buffer("offset", torch.randn(1, 12))

    def forward(self, images):
        rows = torch.stack([self.layer(image.flatten()) for image in images])
        return torch.cat([torch.tanh(rows), self.offset.repeat(len(images), 1)], dim=1)


def build(name):
    torch.manual_seed(0)
    if name == "batch norm":
        norm = nn.BatchNorm2d(6)
        norm.running_mean = torch.randn(6)
        norm.running_var = torch.rand(6) + 0.5
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
    if name == "group norm":
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.SiLU(), nn.AdaptiveAvgPool2d(2)
        )
    return {"transformer": Patches, "own": Own}[name]()


MODULES = ("batch norm", "group norm", "transformer", "own")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DABAND_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for folder, brighter in (("drawn", 0), ("photos", 40)):
        for number in range(40):
            place = tmp_path / folder / ("cat", "dog")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 150, (20, 24, 3)) + brighter
            pixels[..., number % 2] += 60
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    return {"source": tmp_path / "drawn", "target": tmp_path / "photos"}


def trained(pair, **settings):
    policy = daband.LinUCB.for_pair(pair, seed=0, **settings)
    daband.train(policy, source=pair.source, target=pair.target, episodes=1, episode_length=16)
    policy.deploy("target")
    return policy


@pytest.mark.slow
def test_five_encoders_decide_without_torch_as_the_policy_does(folders, tmp_path):
    from tests.text_encoder import save_text_encoder

    torch.manual_seed(0)
    cases = []
    expected = []
    for name in MODULES:
        module = build(name).eval()
        pair = daband.domains.from_images(**folders, encoder=module, framing=16)
        policy = trained(pair)
        daband.export(policy, tmp_path / f"{name}.daband", pair=pair)
        paths = list(pair.target.row_names["image"][:3])
        rows = [
            Image.open(path).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
            for path in paths
        ]
        images = torch.from_numpy(
            np.stack([np.asarray(row, np.float32).transpose(2, 0, 1) for row in rows]) / 255
        )
        with torch.no_grad():
            features = module(images).flatten(1).numpy().astype(np.float64)
        cases.append((str(tmp_path / f"{name}.daband"), paths))
        expected.append(policy.decide(features, "target").mean)
    texts = ["where is my parcel", "A refund, please!", "thanks for the quick answer " * 12]
    folder = save_text_encoder(tmp_path / "texts")
    pair = daband.domains.from_texts(
        source=(texts * 12, ["track", "refund", "none"] * 12),
        target=texts,
        encoder=f"sentence-transformers:{folder}",
    )
    from sentence_transformers import SentenceTransformer

    policy = trained(pair)
    daband.export(policy, tmp_path / "texts.daband", pair=pair)
    cases.append((str(tmp_path / "texts.daband"), texts))
    features = SentenceTransformer(str(folder), device="cpu").encode(texts).astype(np.float64)
    expected.append(policy.decide(features, "target").mean)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (path, _), found, wanted in zip(cases, json.loads(done.stdout), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("name", MODULES)
def test_a_network_inside_a_policy_is_exported_as_it_decides(name, tmp_path):
    module = build(name)
    recipe = {
        "base": "small",
        "encoder": {"dense": {"dimension": 8, "hidden": 10}},
        "learning": {"steps": 2, "batch": 8},
    }
    policy = daband.DABand(context_shape=SHAPE, n_arms=2, seed=0, encoder=module, recipe=recipe)
    rng = np.random.default_rng(0)
    contexts = rng.integers(0, 256, (40, *SHAPE), np.uint8)
    policy.observe_target(contexts)
    policy.update(contexts, rng.integers(0, 2, 40), rng.random(40), domain="source")
    policy.adapt()
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    for rows in (contexts[:1], contexts, contexts[:3] / 255):
        wanted = policy.decide(rows, "target")
        found = deployed.decide(rows)
        np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-5)
        np.testing.assert_allclose(found.bonus, wanted.bonus, atol=1e-5)


def test_a_network_with_norms_by_domain_takes_any_number_of_rows():
    class Normed(FeatureNetwork):
        def __init__(self):
            super().__init__()
            self.context_shape = (6,)
            self.width = 6
            self.norm = DomainNorm(n_channels=6)
            self.norm.running_mean[:] = torch.tensor([[0.0] * 6, [1.0] * 6])
            self.norm.batches_seen[:] = 3

        def forward(self, contexts, *, rows_per_domain):
            return torch.relu(self.norm(contexts, rows_per_domain=rows_per_domain))

    torch.manual_seed(0)
    encoder = Encoder(features=Normed(), dense=DenseSettings(dimension=4, hidden=8))
    contexts = np.random.default_rng(0).normal(size=(9, 6))
    inference = InferenceEncoder(encoder, device=torch.device("cpu"))
    own = [TorchNetwork(inference, domain).freeze() for domain in (0, 1)]
    assert not own[1].settings["single"]
    for network in own:
        again = load_part(network.settings, network.arrays)
        np.testing.assert_allclose(again(contexts), network(contexts), atol=1e-5)
    assert not np.allclose(own[0](contexts), own[1](contexts))


def test_what_cannot_be_written_as_onnx_is_named():
    class Odd(nn.Module):
        def forward(self, images):
            return torch.fft.fft2(images).abs().flatten(1)[:, :4].sort(
                dim=1
            ).values + torch.special.i1(images.mean())

    with pytest.raises(InvalidInput, match=r"Odd .*ONNX"):
        to_onnx(Odd(), (torch.rand(3, 3, 8, 8),))


def test_decide_takes_images_in_every_form_and_a_damaged_program_is_named(folders, tmp_path):
    pair = daband.domains.from_images(**folders, encoder=build("group norm"), framing=16)
    policy = trained(pair)
    daband.export(policy, tmp_path / "p.daband", pair=pair)
    deployed = daband.load_deployed(tmp_path / "p.daband")
    path = pair.target.row_names["image"][0]
    content = Path(path).read_bytes()
    text = base64.b64encode(content).decode()
    rows = [path, content, text, {"image": text}, {"image": content}]
    means = [deployed.decide(row).mean for row in rows]
    assert all(np.array_equal(mean, means[0]) for mean in means)
    np.testing.assert_allclose(deployed.decide([path, content]).mean[1], means[0], atol=1e-6)
    np.testing.assert_allclose(
        policy.decide(pair.target.read(np.zeros(1, int)), "target").mean[0], means[0], atol=1e-5
    )
    small = io.BytesIO()
    Image.new("L", (3, 5)).save(small, "JPEG")
    assert deployed.decide(small.getvalue()).arm in (0, 1)
    for wrong, message in (
        (b"nothing", "image "),
        ("nowhere.png", r"nowhere\.png "),
        (7, "shape"),
    ):
        with pytest.raises(InvalidInput, match=message):
            deployed.decide(wrong)
    column = policy.table.columns[0]
    column.encoder.program.content = b"nothing"
    with pytest.raises(CheckpointError, match=r"ONNX .*onnxruntime"):
        daband.export(policy, tmp_path / "q.daband")
    assert not (tmp_path / "q.daband").exists()


def test_the_command_line_decides_on_a_folder_and_learns_from_its_log(folders, tmp_path):
    import polars as pl

    from tests.cli.test_choose import daband as run

    pair = daband.domains.from_images(**folders, encoder=build("batch norm"), framing=16)
    policy = trained(pair)
    policy.save(tmp_path / "p.safetensors")
    daband.export(policy, tmp_path / "p.daband", pair=pair, epsilon=1.0)  # every weight is 1
    told = run("decide", "p.daband", "photos/cat", "--out", "log.csv", cwd=tmp_path)
    assert "daband learn DIR log.csv" in told
    log = pl.read_csv(tmp_path / "log.csv").with_columns(reward=pl.Series(np.arange(20) / 20))
    log.write_csv(tmp_path / "log.csv")
    run(
        "learn", "p.safetensors", "log.csv", "--id", "image", "--out", "q.safetensors", cwd=tmp_path
    )
    learned = daband.load(tmp_path / "q.safetensors")
    contexts = policy.table.contexts([{"image": str(tmp_path / name)} for name in log["image"]])
    policy.update(
        contexts,
        [policy.arm_names.index(name) for name in log["arm"]],
        log["reward"].to_numpy(),
        "target",
    )
    np.testing.assert_allclose(
        learned.decide(contexts).mean, policy.decide(contexts).mean, atol=1e-6
    )
