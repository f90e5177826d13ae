"""A policy in one's own loop: choose, act, learn when the reward comes, save, go on.

Run it with ``python examples/own_loop.py``. The environment here is a stand-in for yours: people with a few features,
four offers, and a reward that arrives some rounds later, or never.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import daband


def estimate(rewards: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """The self-normalised importance-weighted mean of rewards (n,) with weights (n,), and its 95% normal interval."""
    value = float(weights @ rewards / weights.sum())
    error = float(np.sqrt(np.square(weights * (rewards - value)).sum()) / weights.sum())
    return value, value - 1.96 * error, value + 1.96 * error


def main() -> None:
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(6, 4))
    policy = daband.LinUCB(context_shape=(6,), n_arms=4, alpha=0.3, epsilon=0.05, seed=0)
    late: list[tuple[int, np.ndarray, np.ndarray, float]] = []
    log = []
    for round_id in range(3000):
        person = rng.normal(size=(1, 6))
        in_stock = rng.random(4) < 0.9
        in_stock[0] = True
        decision = policy.select(person, available=in_stock)
        clicked = float(rng.random() < 1 / (1 + np.exp(-(person @ taste)[0, decision.arm[0]])))
        log.append((decision.arm[0], clicked, decision.propensity[0]))
        if rng.random() < 0.8:  # one in five rewards is never seen
            late.append((round_id, person, decision.arm, clicked))
        if len(late) >= 25:  # the others come in batches, out of order
            rng.shuffle(late)
            people = np.concatenate([person for _, person, _, _ in late])
            arms = np.concatenate([arm for _, _, arm, _ in late])
            rewards = [reward for _, _, _, reward in late]
            policy.update(people, arms, rewards, ids=[round_id for round_id, _, _, _ in late])
            late = []
    first, last = log[:500], log[-500:]
    print(f"clicks per round, first 500: {np.mean([c for _, c, _ in first]):.3f}")
    print(f"clicks per round, last 500:  {np.mean([c for _, c, _ in last]):.3f}")
    # The propensities make the log fit for off-policy evaluation: what would always offering 0 have paid? Arm 0 was
    # rarely offered, so few clicks carry large weights: a point estimate alone would mislead.
    arms_logged, clicks, chances = (np.array(column) for column in zip(*log, strict=True))
    value, low, high = estimate(clicks, (arms_logged == 0) / chances)
    print(f"always offer 0, estimated:   {value:.3f} (95% interval {low:.3f} to {high:.3f})")
    people = rng.normal(size=(100_000, 6))  # nobody can do this outside a simulation
    print(f"always offer 0, in truth:    {np.mean(1 / (1 + np.exp(-people @ taste[:, 0]))):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        again = daband.load(path)
    people = rng.normal(size=(5, 6))
    assert (again.select(people).arm == policy.select(people).arm).all()


if __name__ == "__main__":
    main()
