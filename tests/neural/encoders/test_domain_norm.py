import pytest
import torch

from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import make_rows_per_domain


def test_each_domain_is_normalised_by_its_own_batch_while_training():
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=3)
    features = torch.cat([torch.randn(16, 3), 5 + 4 * torch.randn(24, 3)])
    out = norm(features, rows_per_domain=(16, 24))
    for part in (out[:16], out[16:]):
        torch.testing.assert_close(part.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.var(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)


def test_running_statistics_are_kept_apart_and_follow_torch_batch_norm():
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=4)
    source = torch.nn.BatchNorm2d(4)
    target = torch.nn.BatchNorm2d(4)
    for _ in range(5):
        a = torch.randn(8, 4, 3, 3)
        b = 2 + 3 * torch.randn(6, 4, 3, 3)
        together = norm(torch.cat([a, b]), rows_per_domain=(8, 6))
        torch.testing.assert_close(together, torch.cat([source(a), target(b)]))
    for row, reference in enumerate((source, target)):
        torch.testing.assert_close(norm.running_mean[row], reference.running_mean)
        torch.testing.assert_close(norm.running_variance[row], reference.running_var)
    norm.eval(), source.eval(), target.eval()
    torch.testing.assert_close(norm(a, rows_per_domain=(8,)), source(a))
    torch.testing.assert_close(norm(b, rows_per_domain=(0, 6)), target(b))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("domain", [0, 1])
def test_folded_scale_and_shift_are_the_norm_itself(affine, domain):
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=3, affine=affine)
    if affine:
        torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
        torch.nn.init.uniform_(norm.bias, -1.0, 1.0)
    norm(torch.cat([1 + torch.randn(16, 3), 5 + 4 * torch.randn(24, 3)]), rows_per_domain=(16, 24))
    norm.eval()
    features = torch.randn(7, 3)
    scale, shift = norm.compute_affine(domain)
    torch.testing.assert_close(
        features * scale + shift, norm(features, rows_per_domain=make_rows_per_domain(domain, 7))
    )


def test_a_batch_equals_its_singles_at_evaluation():
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=5)
    norm(torch.randn(32, 5), rows_per_domain=(16, 16))
    norm.eval()
    features = torch.randn(7, 5)
    for domain in (0, 1):
        singles = torch.cat(
            [norm(row[None], rows_per_domain=make_rows_per_domain(domain, 1)) for row in features]
        )
        assert torch.equal(norm(features, rows_per_domain=make_rows_per_domain(domain, 7)), singles)


def test_a_domain_never_seen_borrows_the_source():
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=2)
    norm(3 + torch.randn(64, 2), rows_per_domain=(64,))
    norm.eval()
    features = torch.randn(4, 2)
    assert torch.equal(
        norm(features, rows_per_domain=(0, 4)), norm(features, rows_per_domain=(4, 0))
    )


def test_empty_batch_stays_empty():
    assert DomainNorm(n_channels=2)(torch.empty(0, 2), rows_per_domain=(0, 0)).shape == (0, 2)


def test_nonsense_settings_are_refused():
    with pytest.raises(InvalidInput):
        DomainNorm(n_channels=2, statistics="moon")


def test_statistics_of_the_source_alone_ignore_the_target():
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=3, statistics="source")
    reference = torch.nn.BatchNorm1d(3)
    for _ in range(4):
        source = torch.randn(16, 3)
        target = 5 + torch.randn(8, 3)
        out = norm(torch.cat([source, target]), rows_per_domain=(16, 8))
        torch.testing.assert_close(out[:16], reference(source))
        assert out[16:].mean() > 3
    norm.eval(), reference.eval()
    torch.testing.assert_close(norm(target, rows_per_domain=(0, 8)), reference(target))


def test_several_sources_have_their_own_statistics_and_lend_their_mixture():
    torch.manual_seed(0)
    domains = DomainNames(sources=("de", "fr"), targets=("pl", "cz"))
    own, pooled = (
        DomainNorm(n_channels=3, domains=domains, statistics=how) for how in ("own", "source")
    )
    own.momentum = pooled.momentum = 1.0
    parts = [offset + torch.randn(64, 3) for offset in (0.0, 6.0, 3.0)]
    rows = (64, 64, 64)
    torch.testing.assert_close(
        own(torch.cat(parts), rows_per_domain=rows),
        torch.cat([torch.nn.BatchNorm1d(3)(part) for part in parts]),
    )
    both = torch.cat(parts[:2])
    expected = (torch.cat(parts) - both.mean(0)) / both.std(0, correction=0)
    torch.testing.assert_close(
        pooled(torch.cat(parts), rows_per_domain=rows), expected, atol=0.05, rtol=0.05
    )
    for norm in (own.eval(), pooled.eval()):  # a target that was not trained on
        new = norm(parts[2], rows_per_domain=(0, 0, 0, 64))
        torch.testing.assert_close(new, expected[128:], atol=0.05, rtol=0.05)
