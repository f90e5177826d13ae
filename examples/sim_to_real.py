"""
Sim to real: a simulator as the source
======================================

**My simulator pays for every trial, the robot does not. How do I use both?**

.. image:: images/sphx_glr_sim_to_real_001.png
   :alt: what the simulated and the real camera see, and the share of throws that hit

A robot throws a ball at a basket: which of five forces? The simulator is free, so it can be asked as often as we
like. Of the real robot there are camera readings only: nobody has thrown yet. Source and target are plain functions
here; nothing is stored.

The data are made up, and were changed until the page shows what it is about: an illustration, not evidence. What was
measured on real data is under Results.
"""

# %%
# Two functions make the source
# -----------------------------
#
# ``draw(generator, n)`` gives n contexts, ``pay(generator, contexts, arms)`` what these arms pay there. All randomness
# comes from the generator: a round is the same whenever it is asked for, so a run can be repeated and resumed.
#
# A context is a row of 24 pixels of a simple camera in which the basket is a bright spot; near baskets look larger.
# The right force depends on the distance alone.

import matplotlib.pyplot as plt
import numpy as np

import daband

PIXELS, FORCES = 24, 5
GRID = np.linspace(-1, 1, PIXELS)


def scenes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The distance of n baskets, 0 near to 1 far, about one of five marks, and where in the picture each stands."""
    marks = rng.integers(0, FORCES, n)
    return (marks + rng.uniform(0.25, 0.75, n)) / FORCES, rng.uniform(-0.4, 0.4, n)


def simulated_camera(rng: np.random.Generator, distance: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Clean pictures (n, PIXELS)."""
    size = (0.5 - 0.38 * distance)[:, None]
    return np.exp(-(((GRID - place[:, None]) / size) ** 2)) + 0.03 * rng.normal(size=(len(place), PIXELS))


def real_camera(rng: np.random.Generator, distance: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The same scene, but brighter on one side, with a fixed pattern, another contrast and more noise."""
    picture = simulated_camera(rng, distance, place)
    return 0.7 * picture + 0.2 + 0.2 * GRID + 0.15 * np.cos(9 * GRID) + 0.03 * rng.normal(size=picture.shape)


def draw_simulated(rng: np.random.Generator, n: int) -> np.ndarray:
    return simulated_camera(rng, *scenes(rng, n))


def draw_real(rng: np.random.Generator, n: int) -> np.ndarray:
    return real_camera(rng, *scenes(rng, n))


def width_of(picture: np.ndarray) -> np.ndarray:
    """How wide the bright spot is, from which the simulator knows the distance."""
    widths: np.ndarray = picture.sum(axis=1) * (GRID[1] - GRID[0])
    return widths


SIZES = np.sqrt(np.pi) * (0.5 - 0.38 * (np.arange(FORCES) + 0.5) / FORCES)


def pay(pictures: np.ndarray, force: int) -> np.ndarray:
    """1 for a hit: the force that suits the distance."""
    best = np.abs(width_of(pictures)[:, None] - SIZES).argmin(axis=1)
    return (force == best).astype(float)


# %%
# Some real scenes are kept with their distance, to say at the end how well it went. Training gets the pictures of
# ``draw_real`` and nothing else. The same scene looks different in the two cameras: that is a shift of style, and we
# have to say so (:doc:`/concepts/assumptions`).

check = np.random.default_rng(7)
distance, place = scenes(check, 1500)
truth = np.minimum((distance * FORCES).astype(int), FORCES - 1)
real_test = (real_camera(check, distance, place), truth)

rng = np.random.default_rng(0)
pictures = draw_simulated(rng, 5000)
pair = daband.domains.from_arrays(
    source=(pictures, np.stack([pay(pictures, force) for force in range(FORCES)], axis=1)),
    target=draw_real(rng, 5000),
    target_test=real_test,
    shift="style",
    name="throws",
)
print(pair.context_shape, pair.n_arms, f"arms, {len(pair.source):,} simulated scenes")

# %%
# Train in the simulator, for the robot
# -------------------------------------
#
# A column of rewards per arm means that a round tells of one arm (``feedback="bandit"``), which ``for_pair`` knows.

policies = {
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "Neural-LinUCB": daband.NeuralLinUCB.for_pair(pair, recipe="small", seed=0),
    "DABand": daband.DABand.for_pair(pair, recipe="small", seed=0),
}
hits = {}
for name, policy in policies.items():
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=60)
    simulated = daband.evaluate(policy, pair.source_test, as_domain="source").value
    hits[name] = daband.evaluate(policy, pair.target_test).accuracy
    print(f"{name:14} hits in the simulator {simulated:.3f}, with the real camera {hits[name]:.3f}")

figure, axes = plt.subplots(1, 3, figsize=(9, 2.9), width_ratios=[1, 1, 1.2])
shown = np.random.default_rng(3)
apart, middle = np.array([0.1, 0.5, 0.9]), np.array([-0.1, 0.0, 0.1])
for axis, camera, title in ((axes[0], simulated_camera, "simulated camera"), (axes[1], real_camera, "real camera")):
    for row, label in zip(camera(shown, apart, middle), ("near", "middle", "far"), strict=True):
        axis.plot(row, label=label)
    axis.set(title=title, xlabel="pixel", ylim=(-0.3, 1.9))
axes[0].legend(frameon=False, fontsize=8)
bars = axes[2].barh(list(hits), list(hits.values()), color=["#9fb3c8", "#9fb3c8", "#0072b2"])
axes[2].bar_label(bars, fmt="%.2f", padding=3)
axes[2].axvline(1 / FORCES, color="grey", linestyle=":")
axes[2].invert_yaxis()
axes[2].set(xlim=(0, 1.15), xlabel="right forces, real camera")
plt.show()
assert hits["DABand"] > max(0.9, hits["LinUCB"] + 0.1)

# %%
# With ``shift="style"`` all three normalise what each camera sees by its own statistics, and DABand aligns the rest.
# LinUCB, linear in the pixels, hits less in the simulator already. Left at ``"covariate"``, the default for rows of
# numbers, all three would take the camera for the scene and hit by chance.

# %%
# Then, with real rewards
# -----------------------
#
# Once the robot may throw, the policy goes on learning where it is; it starts from what it knows. 400 throws, each
# learned from:

policy = policies["DABand"]
policy.deploy("target")
fresh = daband.LinUCB(context_shape=(PIXELS,), n_arms=FORCES, transform=daband.Standardise(), seed=0)
fresh.prepare(real_test[0])
rng = np.random.default_rng(11)
scored = {"DABand, then real throws": 0.0, "LinUCB, real throws alone": 0.0}
for _ in range(400):
    where = scenes(rng, 1)
    picture = real_camera(rng, *where)
    best = min(int(where[0][0] * FORCES), FORCES - 1)
    for name, learner in zip(scored, (policy, fresh), strict=True):
        arm = learner.select(picture).arm
        reward = float(arm[0] == best)
        learner.update(picture, arm, [reward])
        scored[name] += reward
print({name: f"{total:.0f} hits of 400" for name, total in scored.items()})
