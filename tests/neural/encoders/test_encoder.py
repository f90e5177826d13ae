import numpy as np
import pytest
import torch
from torch import nn

from daband.errors import InvalidInput
from daband.neural import DenseSettings
from daband.neural.encoders import _encoder as encoder_module
from daband.neural.encoders._encoder import (
    _pad_rows,
    build_encoder,
    encoders,
    limit_threads,
)

SHAPES = [
    ("mlp", (7,)),
    ("mlp", (2, 3)),
    ("conv", (3, 28, 28)),
    ("conv", (1, 17, 20)),
    ("auto", (3, 64, 64)),
]


def trained(name, shape, **settings):
    torch.manual_seed(0)
    encoder = build_encoder(name, context_shape=shape, dense=DenseSettings(**settings))
    with torch.no_grad():
        encoder(torch.rand(32, *shape), rows_per_domain=(16, 16))
    return encoder.eval()


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_domains_mixed_in_one_batch_equal_domains_apart(name):
    encoder = trained(name, (3, 20, 20))
    contexts = torch.rand(6, 3, 20, 20)
    rest = len(contexts) - 2
    mixed = encoder(contexts, rows_per_domain=(2, rest)).features
    apart = torch.cat(
        [
            encoder(contexts[:2], rows_per_domain=(2,)).features,
            encoder(contexts[2:], rows_per_domain=(0, rest)).features,
        ]
    )
    torch.testing.assert_close(mixed, apart, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(
        mixed[2:], encoder(contexts[2:], rows_per_domain=(rest,)).features, atol=1e-4
    )


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_uint8_is_scaled_to_the_unit_range(name):
    encoder = trained(name, (3, 16, 16))
    image = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)
    )
    torch.testing.assert_close(encoder(image).features, encoder(image.float() / 255).features)


def test_tap_can_be_the_latent():
    encoder = trained("mlp", (5,), aligned="last")
    features, aligned = encoder(torch.rand(3, 5))
    assert aligned is features
    assert encoder.n_aligned_features == encoder.dimension


@pytest.mark.parametrize(
    "options", [{"normalise": False}, {"pixels": "symmetric"}, {"channels": (4,)}]
)
def test_conv_variants(options):
    encoder = build_encoder("conv", context_shape=(1, 28, 28), **options)
    features, _ = encoder(torch.rand(4, 1, 28, 28), rows_per_domain=(2, 2))
    features.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in encoder.parameters())
    assert torch.isfinite(encoder(torch.zeros(4, 1, 28, 28)).features).all()


def test_conv_caps_the_tap_of_large_images():
    assert build_encoder("conv", context_shape=(3, 224, 224)).n_aligned_features == 48 * 8 * 8


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, contexts):
        return self.norm(self.layer(contexts.flatten(1)))


def test_a_module_of_ones_own_is_an_encoder_and_keeps_batch_equal_to_singles():
    encoder = build_encoder(Linear(), context_shape=(2, 3)).train()
    contexts = torch.rand(5, 2, 3)
    singles = torch.cat([encoder(row[None]).features for row in contexts])
    torch.testing.assert_close(encoder(contexts).features, singles)
    assert encoder.n_aligned_features == 4


def test_an_unfit_module_is_refused():
    with pytest.raises(InvalidInput, match=r"encoder .*\(5,\)"):
        build_encoder(Linear(), context_shape=(5,))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("conv", (7,), "images"),
        ("conv", (3, 8, 8), "mlp"),
        ("mpl", (3,), "'mpl'.*'mlp'"),
    ],
)
def test_unfit_shapes_and_names_are_refused(name, shape, message):
    with pytest.raises(InvalidInput, match=message):
        build_encoder(name, context_shape=shape)


def test_wrong_context_shape_names_both():
    encoder = build_encoder("mlp", context_shape=(4,))
    with pytest.raises(InvalidInput, match=r"\(4,\)"):
        encoder(torch.rand(2, 5))


def test_latent_settings_are_checked():
    for wrong in ({"dimension": 0}, {"hidden": 0}, {"aligned": "moon"}):
        with pytest.raises(InvalidInput):
            DenseSettings(**wrong)


def test_every_encoder_is_registered():
    assert {"mlp", "conv"} <= set(encoders.names())


def test_pixels_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInput, match=r"pixels .*'bright'"):
        build_encoder("conv", context_shape=(3, 20, 20), pixels="bright")


@pytest.mark.parametrize("network", ["mlp", nn.Sequential(nn.Flatten(), nn.Linear(6, 5))])
def test_dense_layers_take_features_of_half_precision(network):
    encoder = build_encoder(network, context_shape=(6,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = encoder(torch.rand(8, 6), rows_per_domain=(4, 4)).features
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(8))


@pytest.mark.parametrize(
    ("rows", "filled"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (2000, 2048)]
)
def test_rows_are_filled_up_to_a_power_of_two_with_copies_of_the_first(rows, filled):
    contexts = torch.arange(rows * 2, dtype=torch.float32).view(rows, 2)
    given = _pad_rows(contexts)
    assert len(given) == filled
    assert torch.equal(given[:rows], contexts)
    assert torch.equal(given[rows:], contexts[:1].expand(filled - rows, 2))


@pytest.fixture
def two_threads(monkeypatch):
    """Stands for a machine on which torch uses two threads by itself."""
    now = [2]
    for name in encoder_module._THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(encoder_module, "_N_DEFAULT_THREADS", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    return now


def test_one_thread_within_the_block_and_what_it_was_behind_it(two_threads):
    with limit_threads(False):
        assert two_threads[-1] == 1
    assert two_threads[-1] == 2
    with limit_threads(needs_threads=True):
        assert two_threads[-1] == 2


def test_what_the_user_chose_is_left_alone(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with limit_threads(False):
        assert two_threads == [2]
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(encoder_module, "_N_DEFAULT_THREADS", 8)  # so the two are a choice
    with limit_threads(False):
        assert two_threads == [2]
