"""
Your own loop
=============

**How do I put a bandit into a program that I already have?**

.. image:: images/sphx_glr_own_loop_001.png
   :alt: clicks per round while the policy learns, and the fraction of rounds in which the new offer is shown

``select`` chooses, ``update`` learns. Between the two anything may happen: rewards arrive late, in
batches, out of order, or never; an offer is out of stock; a new offer is added; the program is
restarted. The people here are simulated, so that the best choice is known."""

# %%
# The world
# ---------
#
# A person is described by six numbers. The probability of a click on each of four offers depends on
# them. In your program this part is the real world; the policy never sees it.

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np

import daband

rng = np.random.default_rng(0)
taste = rng.normal(size=(6, 5))  # the fifth offer comes later


def compute_click_probabilities(person: np.ndarray) -> np.ndarray:
    """Return the probability of a click on every offer, (B, 5)."""
    return 1 / (1 + np.exp(-person @ taste))


# %%
# The loop
# --------
#
# ``epsilon=0.05`` draws an arm at random in one round of twenty, so that the log can be used to
# evaluate other policies. ``available`` excludes offers that are out of stock. ``ids`` name rounds,
# so that a reward that is delivered twice counts once.

policy = daband.LinUCB(context_shape=(6,), n_arms=4, alpha=0.3, epsilon=0.05, seed=0)
pending_rewards: list[tuple[str, np.ndarray, int, float]] = []  # rewards on their way
log = []

for round_number in range(4000):
    if round_number == 2000:
        # from now on there is a fifth offer, of which nothing is known yet
        new_offer = policy.add_arm()
    person = rng.normal(size=(1, 6))
    in_stock = rng.random(policy.n_arms) < 0.9
    in_stock[0] = True
    decision = policy.select(person, available=in_stock)
    arm = int(decision.arm[0])

    click_probabilities = compute_click_probabilities(person)[0]
    clicked = float(rng.random() < click_probabilities[arm])
    best_probability = click_probabilities[: policy.n_arms][in_stock].max()
    log.append((arm, clicked, decision.propensity[0], best_probability))

    if rng.random() < 0.8:  # one reward in five is never seen
        pending_rewards.append((f"round-{round_number}", person[0], arm, clicked))
    if len(pending_rewards) >= 25:  # the others come in batches, out of order
        rng.shuffle(pending_rewards)
        round_ids, persons, arms, rewards = zip(*pending_rewards, strict=True)
        policy.update(np.array(persons), arms, rewards, ids=round_ids)
        pending_rewards.clear()

print(policy)

# %%
# The result
# ----------
#
# The dotted line is the best possible policy. When the new offer is added, the policy tries it, and
# then shows it to people who like it.

arms, clicks, propensities, best_probabilities = (
    np.array(column) for column in zip(*log, strict=True)
)


def smooth(values: np.ndarray, window: int = 250) -> np.ndarray:
    """Return the mean of the latest ``window`` rounds."""
    return np.convolve(values, np.ones(window) / window, mode="valid")


figure, (click_axes, arm_axes) = plt.subplots(1, 2, figsize=(8, 3))
click_axes.plot(smooth(clicks), label="policy")
click_axes.plot(smooth(best_probabilities), ":", color="black", label="best offer in stock")
click_axes.axvline(2000, color="grey", linewidth=0.8)
click_axes.set(xlabel="round", ylabel="clicks per round", ylim=(0.4, 1))
click_axes.legend(frameon=False)
for offer in range(5):
    label = f"offer {offer}" + (" (new)" if offer == new_offer else "")
    arm_axes.plot(smooth((arms == offer).astype(float)), label=label)
arm_axes.set(xlabel="round", ylabel="share of rounds")
arm_axes.legend(frameon=False, fontsize=8)
plt.show()

# %%
# Would something simpler have done?
# ----------------------------------
#
# The log has the exact probability of every choice. So it can be used to estimate the clicks of
# another policy without trying it: here "always offer 0", by the self-normalised
# importance-weighted mean. Offer 0 was shown rarely, so the interval is wide.

weights = (arms == 0) / propensities
estimate = float(weights @ clicks / weights.sum())
standard_error = float(np.sqrt(np.square(weights * (clicks - estimate)).sum()) / weights.sum())
many_persons = rng.normal(size=(100_000, 6))
# nobody can do this outside a simulation
true_value = compute_click_probabilities(many_persons)[:, 0].mean()
low = estimate - 1.96 * standard_error
high = estimate + 1.96 * standard_error
print(f"the policy, last 500 rounds: {clicks[-500:].mean():.3f}")
print(f"always offer 0, estimated:   {estimate:.3f} (95% interval {low:.3f} to {high:.3f})")
print(f"always offer 0, in truth:    {true_value:.3f}")
assert clicks[-500:].mean() > true_value + 0.1

# %%
# Restart
# -------
#
# A file is written whole or not at all, runs no code when it is read, and the loaded policy
# continues exactly where the saved one stopped.

import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "policy.safetensors"
    policy.save(path)
    loaded = daband.load(path)
    print(f"{path.stat().st_size / 1024:.0f} kB")

persons = rng.normal(size=(5, 6))
assert (loaded.select(persons).arm == policy.select(persons).arm).all()

# %%
# Bad input changes nothing, and the message names the argument:

try:
    policy.update(persons, [0, 1, 2, 3, 9], [1, 0, 0, 1, 1])
except daband.InvalidInput as error:
    print(error)
