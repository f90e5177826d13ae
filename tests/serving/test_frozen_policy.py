"""The deployed file decides as the policy does: random shapes, types of numbers, layouts, policies
and settings.
"""

import warnings

import numpy as np
import pytest

import daband
from daband.features._catalogue import Catalogue

CONFIGURATIONS = 440
PER_POLICY = 11
"""Settings and types of numbers that are tried on one trained policy."""
VECTORS = [(1,), (3,), (17,), (4, 5), (2, 3, 4)]
IMAGES = [(1, 16, 16), (1, 19, 18), (3, 17, 16), (4, 16, 16)]
TYPES = (np.uint8, np.float32, np.float64)
LATENT = {"dimension": 5, "hidden": 7}


def contexts_of(draw, shape, n, dtype):
    """Contexts of this type that training and decisions may have: bytes, or numbers of
    their scale.
    """
    if dtype is np.uint8:
        return draw.integers(0, 256, (n, *shape)).astype(np.uint8)
    scale = 1.0 if len(shape) > 1 and min(shape) > 0 and np.prod(shape) >= 256 else 3.0
    return (scale * draw.random((n, *shape))).astype(dtype)


def catalogue_of(draw, n_arms):
    """Arms with features, of which one may not be offered in the source."""
    offered = np.ones((2, n_arms), bool)
    offered[0, 1:2] = draw.random() < 0.5
    return Catalogue.fit(
        [str(at) for at in range(n_arms)], draw.normal(size=(n_arms, 3)), offered=offered
    )


def random_policy(draw):
    """A policy of random kind, shape and settings, trained a little, and the shape of one of its
    rounds.
    """
    kind = draw.choice(["constant", "random", *["linucb"] * 4, *["nlinucb"] * 2, *["daband"] * 2])
    n_arms = int(draw.integers(1, 6))
    seed = int(draw.integers(1 << 30))
    arms = str(draw.choice(["disjoint", "disjoint", "shared"]))
    low = float(draw.choice([0.0, -3.0, 10.0]))
    image = kind in ("linucb", "nlinucb", "daband") and arms == "disjoint" and draw.random() < 0.4
    shape = (IMAGES if image else VECTORS)[int(draw.integers(len(IMAGES if image else VECTORS)))]
    shared = {"context_shape": shape, "n_arms": n_arms, "arms": arms, "seed": seed}
    if kind in ("constant", "random"):
        policy = {"constant": daband.Constant, "random": daband.Random}[kind](**shared)
    else:
        size = int(np.prod(shape))
        transforms = [
            None,
            daband.Standardise(),
            daband.PCA(min(3, size)),
            daband.Standardise(components=min(2, size)),
        ]
        in_front = transforms[int(draw.integers(len(transforms)))]
        if kind == "linucb":
            own = {"ridge": float(draw.choice([0.5, 1.0, 4.0]))}
            if arms == "disjoint" and not image and draw.random() < 0.7:
                own["catalogue"] = catalogue_of(draw, n_arms)
            policy = daband.LinUCB(**shared, transform=in_front, **own)
            # pooled with regressions per arm
            if own.get("catalogue") is not None and draw.random() < 0.5:
                per_arm = daband.LinUCB(**shared, transform=in_front)
                members = {"joint": policy, "own": per_arm, "mean": daband.Constant(**shared)}
                policy = daband.Mixture(**shared, members=members)
        else:
            in_front = None if image else in_front
            options = {"channels": [3, 4]} if image else {"widths": [6]}
            if image and draw.random() < 0.5:
                options |= {"pixels": "symmetric", "normalise": bool(draw.random() < 0.5)}
            encoder = {"name": "conv" if image else "mlp", "options": options, "dense": LATENT}
            learning = {"steps": 1, "batch": 8}
            recipe = {"base": "small", "learning": learning, "encoder": encoder}
            own = {"nlinucb": daband.NeuralLinUCB, "daband": daband.DABand}[kind]
            catalogue = (
                catalogue_of(draw, n_arms) if arms == "disjoint" and draw.random() < 0.7 else None
            )
            settings = {
                "transform": in_front,
                "recipe": recipe,
                "device": "cpu",
                "catalogue": catalogue,
            }
            policy = own(**shared, **settings)
            # seeds, or pooled with regressions per arm
            if catalogue is not None and draw.random() < 0.5:
                other = own(**{**shared, **settings, "seed": seed + 1})
                if not image and draw.random() < 0.5:
                    other = daband.LinUCB(**shared)
                policy = daband.Mixture(**shared, members={"a": policy, "b": other})
    row = (n_arms, *shape) if arms == "shared" else shape
    contexts = contexts_of(draw, row, 40, TYPES[int(draw.integers(3))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a policy that saw no target, or of an outlier
        policy.prepare(contexts)
        if draw.random() < 0.7:
            policy.observe_target(contexts)
        for _ in range(1 if policy.catalogue is None else 3):  # enough to fit penalties
            policy.update(
                contexts, draw.integers(0, n_arms, 40), low + 5.0 * draw.integers(0, 2, 40)
            )
        policy.adapt()
    return policy, row


def change_settings(policy, draw):
    """Another way to explore, where the policy has one."""
    if hasattr(policy, "epsilon"):
        policy.epsilon = float(draw.choice([0.0, 0.0, 0.2, 1.0]))
        policy.explore = str(draw.choice(["ucb", "greedy"]))
    if hasattr(policy, "alpha"):
        policy.alpha = float(draw.choice([0.0, 0.15, 2.0]))


@pytest.mark.parametrize("number", range(CONFIGURATIONS // PER_POLICY))
def test_the_file_decides_as_the_policy_does(number, tmp_path):
    draw = np.random.default_rng([22, number])
    policy, row = random_policy(draw)
    for _ in range(PER_POLICY):
        change_settings(policy, draw)
        domain = str(draw.choice(["source", "target"]))
        contexts = contexts_of(draw, row, 6, TYPES[int(draw.integers(3))])
        available = None
        if draw.random() < 0.4:
            available = draw.random((6, policy.n_arms)) < 0.6
            available[~available.any(axis=1)] = True
            available[:, 0] |= policy.catalogue is not None  # the second arm may not be offered
        daband.export(policy, tmp_path / "p", domain=domain)
        deployed = daband.load_deployed(tmp_path / "p")
        first = policy.rounds_decided
        expected = policy.decide(contexts, domain, available)
        batch = deployed.decide(contexts, arms=available, round_number=first)
        singles = [
            deployed.decide(
                one, arms=None if available is None else available[at], round_number=first + at
            )
            for at, one in enumerate(contexts)
        ]
        told = f"{policy!r} in the {domain}, {contexts.dtype} {row}"
        assert batch.arm.tolist() == [one.arm for one in singles] == expected.arm.tolist(), told
        for found in (batch.propensity, [one.propensity for one in singles]):
            np.testing.assert_allclose(found, expected.propensity, atol=2e-4, err_msg=told)
        for found in (batch.mean, [one.mean for one in singles]):
            np.testing.assert_allclose(found, expected.mean, rtol=1e-4, atol=1e-4, err_msg=told)
        if not deployed.frozen.predictor.has_bonuses:  # a greedy file has no large matrices
            continue
        for found in (batch.bonus, [one.bonus for one in singles]):
            np.testing.assert_allclose(found, expected.bonus, rtol=1e-3, atol=1e-4, err_msg=told)
