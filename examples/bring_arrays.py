"""Learn in one domain for another, from plain arrays: the whole way to a policy file.

Run it with ``python examples/bring_arrays.py``; it takes ten seconds. The data are made up: three kinds of customers,
described by twelve features. In the new market the features are measured on another scale and with another offset, and
nobody has told us yet which offer pays for whom: there is not a single label of it. Only because the data are made up
can the example say at its end how well that went.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import daband


def customers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    kinds = rng.integers(0, 3, n)
    centres = np.eye(3).repeat(4, axis=1)
    return centres[kinds] + 0.35 * rng.normal(size=(n, 12)), kinds


def main() -> None:
    rng = np.random.default_rng(0)
    scale, offset = rng.uniform(0.5, 2.0, 12), rng.normal(0.0, 0.8, 12)

    def new_market(features: np.ndarray) -> np.ndarray:
        return features * scale + offset

    old, best_offer = customers(rng, 3000)
    new, _ = customers(rng, 3000)
    held_out, truth = customers(rng, 1000)
    pair = daband.domains.from_arrays(source=(old, best_offer), target=new_market(new))
    policies = [daband.LinUCB.for_pair(pair, seed=0), daband.DABand.for_pair(pair, recipe="small", seed=0)]
    for policy in policies:
        run = daband.train(policy, source=pair.source, target=pair.target, episodes=40)
        source = daband.evaluate(policy, pair.source_test, as_domain="source")  # rounds that training did not use
        chosen = policy.decide(new_market(held_out), "target", rule="ucb").arm
        print(
            f"{policy.name:8} source regret {run.total_regret:4.0f} of {run.rounds}, "
            f"accuracy on the source {source.accuracy:.3f}, in the new market {np.mean(chosen == truth):.3f}"
        )
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "policy.safetensors")
        ready = daband.load(Path(folder) / "policy.safetensors")
    print("offers for five new customers:", ready.select(new_market(held_out[:5]), domain="target").arm.tolist())


if __name__ == "__main__":
    main()
