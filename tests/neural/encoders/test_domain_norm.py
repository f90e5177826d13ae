import pytest
import torch

from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import domain_rows


def test_each_domain_is_normalised_by_its_own_batch_while_training():
    torch.manual_seed(0)
    norm = DomainNorm(channels=3)
    features = torch.cat([torch.randn(16, 3), 5 + 4 * torch.randn(24, 3)])
    out = norm(features, domain_rows=(16, 24))
    for part in (out[:16], out[16:]):
        torch.testing.assert_close(part.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.var(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)


def test_running_statistics_are_kept_apart_and_follow_torch_batch_norm():
    torch.manual_seed(0)
    norm, source, target = DomainNorm(channels=4), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
    for _ in range(5):
        a, b = torch.randn(8, 4, 3, 3), 2 + 3 * torch.randn(6, 4, 3, 3)
        together = norm(torch.cat([a, b]), domain_rows=(8, 6))
        torch.testing.assert_close(together, torch.cat([source(a), target(b)]))
    for row, reference in enumerate((source, target)):
        torch.testing.assert_close(norm.running_mean[row], reference.running_mean)
        torch.testing.assert_close(norm.running_variance[row], reference.running_var)
    norm.eval(), source.eval(), target.eval()
    torch.testing.assert_close(norm(a, domain_rows=(8,)), source(a))
    torch.testing.assert_close(norm(b, domain_rows=(0, 6)), target(b))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("domain", [0, 1])
def test_folded_scale_and_shift_are_the_norm_itself(affine, domain):
    torch.manual_seed(0)
    norm = DomainNorm(channels=3, affine=affine)
    if affine:
        torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
        torch.nn.init.uniform_(norm.bias, -1.0, 1.0)
    norm(torch.cat([1 + torch.randn(16, 3), 5 + 4 * torch.randn(24, 3)]), domain_rows=(16, 24))
    norm.eval()
    features = torch.randn(7, 3)
    scale, shift = norm.folded(domain)
    torch.testing.assert_close(features * scale + shift, norm(features, domain_rows=domain_rows(domain, 7)))


def test_a_gated_target_keeps_the_running_statistics_of_torch_batch_norm():
    torch.manual_seed(0)
    norm, reference = DomainNorm(channels=4, statistics="gated"), torch.nn.BatchNorm2d(4)
    for _ in range(3):
        target = 2 + 3 * torch.randn(3, 4, 2, 2)
        norm(torch.cat([torch.randn(8, 4, 2, 2), target]), domain_rows=(8, 3))
        reference(target)
    torch.testing.assert_close(norm.running_mean[1], reference.running_mean)
    torch.testing.assert_close(norm.running_variance[1], reference.running_var)


def test_a_batch_equals_its_singles_at_evaluation():
    torch.manual_seed(0)
    norm = DomainNorm(channels=5)
    norm(torch.randn(32, 5), domain_rows=(16, 16))
    norm.eval()
    features = torch.randn(7, 5)
    for domain in (0, 1):
        singles = torch.cat([norm(row[None], domain_rows=domain_rows(domain, 1)) for row in features])
        assert torch.equal(norm(features, domain_rows=domain_rows(domain, 7)), singles)


def test_a_domain_never_seen_borrows_the_source():
    torch.manual_seed(0)
    norm = DomainNorm(channels=2)
    norm(3 + torch.randn(64, 2), domain_rows=(64,))
    norm.eval()
    features = torch.randn(4, 2)
    assert torch.equal(norm(features, domain_rows=(0, 4)), norm(features, domain_rows=(4, 0)))


def test_one_row_in_training_falls_back_to_running_statistics_and_leaves_them():
    norm = DomainNorm(channels=2)
    norm(torch.randn(8, 2), domain_rows=(8,))
    before = norm.running_mean.clone()
    assert torch.isfinite(norm(torch.randn(1, 2), domain_rows=(1,))).all()
    assert torch.equal(norm.running_mean, before)


def test_gradient_agrees_with_finite_differences():
    torch.manual_seed(0)
    norm = DomainNorm(channels=2).double()
    assert torch.autograd.gradcheck(
        lambda x: norm(x, domain_rows=(3, 4)), (torch.randn(7, 2, dtype=torch.float64, requires_grad=True),)
    )


def test_empty_batch_stays_empty():
    assert DomainNorm(channels=2)(torch.empty(0, 2), domain_rows=(0, 0)).shape == (0, 2)


@pytest.mark.parametrize(
    "wrong", [{"channels": 0}, {"channels": 2, "momentum": 0.0}, {"channels": 2, "statistics": "moon"}]
)
def test_nonsense_settings_are_refused(wrong):
    with pytest.raises(InvalidInput):
        DomainNorm(**wrong)


@pytest.mark.parametrize("gate", [0.0, 0.3, 1.0])
def test_trust_moves_the_target_from_the_sources_statistics_to_its_own(gate):
    torch.manual_seed(0)
    norm = DomainNorm(channels=3, statistics="gated")
    norm.gate.fill_(gate)
    for _ in range(60):
        source, target = torch.randn(64, 3), 5 + 2 * torch.randn(64, 3)
        out = norm(torch.cat([source, target]), domain_rows=(64, 64)).detach()
    torch.testing.assert_close(out[:64], torch.nn.BatchNorm1d(3)(source))
    expected = (target.mean(0) - gate * target.mean(0) - (1 - gate) * source.mean(0)).mean()
    spread = (gate * 4 + (1 - gate)) ** 0.5
    assert float(out[64:].mean()) == pytest.approx(float(expected) / spread, abs=0.3)
    norm.eval()
    assert float(norm(target, domain_rows=(0, 64)).detach().mean()) == pytest.approx(float(out[64:].mean()), abs=0.3)


def test_statistics_of_the_source_alone_ignore_the_target():
    torch.manual_seed(0)
    norm, reference = DomainNorm(channels=3, statistics="source"), torch.nn.BatchNorm1d(3)
    for _ in range(4):
        source, target = torch.randn(16, 3), 5 + torch.randn(8, 3)
        out = norm(torch.cat([source, target]), domain_rows=(16, 8))
        torch.testing.assert_close(out[:16], reference(source))
        assert out[16:].mean() > 3
    norm.eval(), reference.eval()
    torch.testing.assert_close(norm(target, domain_rows=(0, 8)), reference(target))


@pytest.mark.parametrize("statistics", ["own", "source", "gated"])
def test_a_training_step_goes_back_through_both_domains(statistics):
    norm = DomainNorm(channels=2, statistics=statistics)
    features = torch.randn(8, 2, requires_grad=True)
    norm(features, domain_rows=(4, 4)).square().sum().backward()
    assert torch.isfinite(features.grad).all()
    assert norm.batches_seen.tolist() == [1, 1]


def test_gradient_of_blended_statistics():
    torch.manual_seed(0)
    norm = DomainNorm(channels=2, statistics="gated").double()
    norm.gate.fill_(0.4)
    assert torch.autograd.gradcheck(
        lambda x: norm(x, domain_rows=(3, 4)), (torch.randn(7, 2, dtype=torch.float64, requires_grad=True),)
    )


def test_several_sources_keep_statistics_of_their_own_and_lend_their_mixture():
    torch.manual_seed(0)
    domains = DomainNames(sources=("de", "fr"), targets=("pl", "cz"))
    own, pooled = (DomainNorm(channels=3, domains=domains, statistics=how, momentum=1.0) for how in ("own", "source"))
    parts = [offset + torch.randn(64, 3) for offset in (0.0, 6.0, 3.0)]
    rows = (64, 64, 64)
    torch.testing.assert_close(
        own(torch.cat(parts), domain_rows=rows), torch.cat([torch.nn.BatchNorm1d(3)(part) for part in parts])
    )
    both = torch.cat(parts[:2])
    mean, deviation = both.mean(0), both.std(0, correction=0)
    expected = (torch.cat(parts) - mean) / deviation
    torch.testing.assert_close(pooled(torch.cat(parts), domain_rows=rows), expected, atol=1e-3, rtol=1e-3)
    for norm in (own.eval(), pooled.eval()):  # a target without a batch of its own, after training
        new = norm(parts[2], domain_rows=(0, 0, 0, 64))
        torch.testing.assert_close(new, expected[128:], atol=0.05, rtol=0.05)


def test_sources_without_a_batch_do_not_count():
    torch.manual_seed(0)
    norm = DomainNorm(channels=2, domains=DomainNames(sources=("a", "b"), targets=("c",)), statistics="source")
    features = torch.randn(8, 2)
    assert torch.equal(norm.eval()(features, domain_rows=(0, 0, 8)), norm(features, domain_rows=(8,)))
    for _ in range(200):
        norm.train()(5 + torch.randn(32, 2), domain_rows=(0, 32))
    assert norm.eval()(5 + torch.zeros(1, 2), domain_rows=(0, 0, 1)).abs().max() < 0.5


def test_channels_with_statistics_of_their_own_beside_those_of_the_source():
    torch.manual_seed(0)
    norm = DomainNorm(channels=3, statistics="source", own_channels=(1,), momentum=1.0)
    own, source = DomainNorm(channels=3, momentum=1.0), DomainNorm(channels=3, statistics="source", momentum=1.0)
    features = torch.cat([torch.randn(64, 3), 5 + 3 * torch.randn(64, 3)])
    for mode, rows in ((True, (64, 64)), (False, (64, 64))):
        found, by_own, by_source = (each.train(mode)(features, domain_rows=rows) for each in (norm, own, source))
        torch.testing.assert_close(found[:, 1], by_own[:, 1])
        torch.testing.assert_close(found[:, [0, 2]], by_source[:, [0, 2]])
    with pytest.raises(InvalidInput, match="own_channels"):
        DomainNorm(channels=3, own_channels=(0,))


@pytest.mark.parametrize("statistics", ["gated", "source"])
def test_maps_in_half_precision_are_normalised_by_statistics_in_full(statistics):
    torch.manual_seed(0)
    half, full = (DomainNorm(channels=3, statistics=statistics) for _ in range(2))
    maps = torch.randn(24, 3, 4, 4).to(torch.bfloat16)
    out = half(maps, domain_rows=(16, 8))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), full(maps.float(), domain_rows=(16, 8)), atol=0.03, rtol=0)
    torch.testing.assert_close(half.running_mean[1], full.running_mean[1])
