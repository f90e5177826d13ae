"""What may stand in front of a policy: ours, and objects of another library."""

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import daband
from daband.errors import CheckpointError, InvalidInput, NotFitted
from daband.linear._transforms import Transform, UnsavedPartWarning, as_transform

X = np.random.default_rng(0).normal(size=(60, 5)) * 4 + 2
ARMS, REWARDS = np.arange(60) % 3, (np.arange(60) % 2).astype(float)


class Halves:
    """A transform of one's own that offers its state."""

    def __init__(self):
        self.fitted = False
        self.offset = np.zeros(0)

    def fit(self, contexts):
        self.offset = contexts.mean(axis=0)
        self.fitted = True

    def transform(self, contexts):
        return (contexts - self.offset) / 2

    def state(self):
        return {"offset": self.offset}

    def restore(self, state):
        self.offset, self.fitted = state["offset"], True


class Doubled:
    """A transform with nothing to fit and no attribute that says so."""

    def fit(self, contexts):
        return self

    def transform(self, contexts):
        return contexts * 2


def policy(transform):
    made = daband.LinUCB(context_shape=(5,), n_arms=3, transform=transform)
    if not made.transform.fitted:
        made.prepare(X)
    made.update(X, ARMS, REWARDS)
    return made


@pytest.mark.parametrize(
    "given", [daband.PCA(2), daband.Standardise(), StandardScaler(), TruncatedSVD(n_components=2), Halves(), Doubled()]
)
def test_every_transform_is_one_and_is_the_policys_own_copy(given):
    made = policy(given)
    assert isinstance(made.transform, Transform)
    assert not getattr(given, "fitted", False)
    assert not hasattr(given, "mean_")
    np.testing.assert_allclose(
        made.decide(X[:4]).mean, np.concatenate([made.decide(X[i : i + 1]).mean for i in range(4)]), atol=1e-9
    )


@pytest.mark.exact_contexts
def test_a_foreign_transform_does_what_it_does_by_hand():
    scaled = StandardScaler().fit(X).transform(X)
    by_hand = daband.LinUCB(context_shape=(5,), n_arms=3)
    by_hand.update(scaled, ARMS, REWARDS)
    np.testing.assert_allclose(policy(StandardScaler()).decide(X).mean, by_hand.decide(scaled).mean, atol=1e-9)


def test_a_pipeline_comes_fitted_or_keeps_the_size_of_a_context():
    pipeline = make_pipeline(StandardScaler(), TruncatedSVD(n_components=2))
    assert policy(pipeline.fit(X)).transform.n_features((5,)) == 2
    with pytest.raises(InvalidInput, match=r"gives 2 features, 5 were expected.*fit it before"):
        policy(make_pipeline(StandardScaler(), TruncatedSVD(n_components=2)))


def test_images_and_shared_arms_are_flattened():
    images = np.random.default_rng(1).integers(0, 256, size=(30, 3, 4, 4), dtype=np.uint8)
    made = daband.LinUCB(context_shape=(3, 4, 4), n_arms=2, transform=StandardScaler())
    made.prepare(images)
    assert made.select(images[:3]).arm.shape == (3,)
    shared = daband.LinUCB(context_shape=(5,), n_arms=2, arms="shared", transform=daband.Standardise())
    shared.prepare(X.reshape(30, 2, 5))
    assert shared.select(X[:8].reshape(4, 2, 5)).mean.shape == (4, 2)


def test_before_it_is_fitted():
    made = daband.LinUCB(context_shape=(5,), n_arms=3, transform=StandardScaler())
    with pytest.raises(NotFitted, match=r"StandardScaler is not fitted.*prepare"):
        made.select(X)


@pytest.mark.parametrize(("wrong", "message"), [(3, "fit and transform, got int"), (StandardScaler, "got the class")])
def test_what_is_no_transform(wrong, message):
    with pytest.raises(InvalidInput, match=message):
        daband.LinUCB(context_shape=(5,), n_arms=3, transform=wrong)


@pytest.mark.parametrize("given", [daband.PCA(2), daband.Standardise()])
def test_ours_are_saved(tmp_path, given):
    made = policy(given)
    made.save(tmp_path / "p")
    np.testing.assert_array_equal(daband.load(tmp_path / "p").decide(X).mean, made.decide(X).mean)
    with pytest.raises(CheckpointError, match="has its own"):
        daband.load(tmp_path / "p", transform=StandardScaler())


def test_one_with_a_state_is_saved_and_handed_in_unfitted(tmp_path):
    made = policy(Halves())
    made.save(tmp_path / "p")
    again = daband.load(tmp_path / "p", transform=Halves())
    np.testing.assert_array_equal(again.decide(X).mean, made.decide(X).mean)
    with pytest.raises(CheckpointError, match=r"transform of its own, .*Halves.*transform=\.\.\."):
        daband.load(tmp_path / "p")
    with pytest.raises(CheckpointError, match=r"must be a .*Halves.* got .*StandardScaler"):
        daband.load(tmp_path / "p", transform=StandardScaler())


def test_one_without_a_state_is_named_and_handed_in_fitted(tmp_path):
    made = policy(StandardScaler())
    with pytest.warns(UnsavedPartWarning, match=r"StandardScaler has no state\(\).*daband\.load\(path, transform="):
        made.save(tmp_path / "p")
    again = daband.load(tmp_path / "p", transform=made.transform.inner)
    np.testing.assert_array_equal(again.decide(X).mean, made.decide(X).mean)


def test_nothing_stays_nothing(tmp_path):
    assert as_transform(None) is None
    plain = daband.LinUCB(context_shape=(5,), n_arms=3)
    plain.save(tmp_path / "p")
    with pytest.raises(CheckpointError, match="the saved policy has none"):
        daband.load(tmp_path / "p", transform=StandardScaler())


class Doubled(daband.Standardise):
    """A user's own change of one of ours."""

    def __call__(self, contexts):
        return 2.0 * super().__call__(contexts)


def test_a_subclass_of_ours_is_saved_and_given_again(tmp_path):
    contexts = np.random.default_rng(0).normal(size=(40, 3))
    policy = daband.LinUCB(context_shape=(3,), n_arms=2, transform=Doubled())
    policy.prepare(contexts)
    policy.update(contexts, np.arange(40) % 2, np.arange(40) % 3 == 0)
    path = tmp_path / "p.safetensors"
    policy.save(path)
    with pytest.raises(CheckpointError, match=r"transform of its own, .*Doubled"):
        daband.load(path)
    with pytest.raises(
        CheckpointError, match=r"transform must be a .*Doubled, as in the saved policy, got .*Standardise"
    ):
        daband.load(path, transform=daband.Standardise())
    loaded = daband.load(path, transform=Doubled())
    np.testing.assert_array_equal(loaded.decide(contexts).mean, policy.decide(contexts).mean)
    assert isinstance(loaded.transform, Doubled)
