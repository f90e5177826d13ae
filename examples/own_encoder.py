"""
Your own encoder
================

**My contexts are neither vectors nor small images. Can I bring my own network?**

.. image:: images/sphx_glr_own_encoder_001.png
   :alt: one signal of each kind in both domains, and the share of right choices with each network

Any ``torch.nn.Module`` from contexts (B, \\*C) to features (B, ...) will do. Here contexts are short recordings of a
machine with three sensors, and the arms are four repairs. Data of the old machines come with rewards; the new
machines have other sensors: louder, noisier, with a drift.

The data are made up, and were changed until the page shows what it is about: an illustration, not evidence. What was
measured on real data is under Results.
"""

# %%
# Recordings of two kinds of machines
# -----------------------------------

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import daband

rng = np.random.default_rng(0)
LENGTH, FAULTS = 64, ["bearing", "valve", "belt", "fan"]
PERIODS = [4.0, 6.0, 9.0, 14.0]


def recordings(n: int, *, new: bool) -> tuple[np.ndarray, np.ndarray]:
    """Signals (n, 3, LENGTH), and which fault each shows: the period of a burst, which comes at any time."""
    fault = rng.integers(0, 4, n)
    time = np.arange(LENGTH)
    middle, phase = rng.uniform(12, LENGTH - 12, (n, 1)), rng.uniform(0, 2 * np.pi, (n, 1))
    wave = np.sin(2 * np.pi * time / np.array(PERIODS)[fault][:, None] + phase)
    burst = 2.0 * wave * np.exp(-(((time - middle) / 9.0) ** 2))
    signal = burst[:, None, :] * rng.uniform(0.6, 1.0, (n, 3, 1)) + 0.35 * rng.normal(size=(n, 3, LENGTH))
    if new:  # another gain on each sensor, and a hum that says nothing
        hum = np.sin(2 * np.pi * (time + rng.uniform(0, 30, (n, 1))) / 30.0)[:, None, :]
        signal = signal * np.array([2.5, 0.6, 1.4])[:, None] + 0.9 * hum + 0.8
    return signal.astype(np.float32), fault


old, repair = recordings(3000, new=False)
new, _ = recordings(3000, new=True)
test, truth = recordings(1000, new=True)
pair = daband.domains.from_arrays(source=(old, repair), target=new, target_test=(test, truth), class_names=FAULTS)
print(pair.context_shape, pair.class_names)

# %%
# The network
# -----------
#
# Each sensor is normalised within its own recording (``InstanceNorm1d``), then two convolutions along time, and the
# largest response, because the place says nothing. daband puts dense layers behind the module. It is copied, so that
# two policies that are given the same one do not train each other's.


class Waves(nn.Module):
    """Signals (B, 3, T) to features (B, 48)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.InstanceNorm1d(3), nn.Conv1d(3, 16, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(16, 48, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(signals)
        return features


torch.manual_seed(0)
settings = {"recipe": "small", "seed": 0}
policies = {
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "DABand, mlp": daband.DABand.for_pair(pair, **settings),
    "Neural-LinUCB, own": daband.NeuralLinUCB.for_pair(pair, encoder=Waves(), **settings),
    "DABand, own": daband.DABand.for_pair(pair, encoder=Waves(), **settings),
}
right = {}
for name, policy in policies.items():
    daband.train(policy, source=pair.source, target=pair.target, episodes=25)
    right[name] = daband.evaluate(policy, pair.target_test).accuracy
    known = daband.evaluate(policy, pair.source_test, as_domain="source").accuracy
    print(f"{name:20} source {known:.3f}  target {right[name]:.3f}")

# %%
# .. note:: The target's labels are used here for one thing: to say at the end how well each did.

figure, axes = plt.subplots(1, 3, figsize=(9, 3), width_ratios=[1, 1, 1.2])
for axis, (name, signals, labels) in zip(axes, (("old", old, repair), ("new", test, truth)), strict=False):
    for fault in range(4):
        axis.plot(signals[np.flatnonzero(labels == fault)[0], 2] + 5 * fault, linewidth=1)
    axis.set(title=f"{name} machines", yticks=[0, 5, 10, 15], yticklabels=FAULTS, xlabel="time")
bars = axes[2].barh(list(right), list(right.values()), color=["#9fb3c8"] * 3 + ["#0072b2"])
axes[2].bar_label(bars, fmt="%.2f", padding=3)
axes[2].invert_yaxis()
axes[2].set(xlim=(0, 1.2), xlabel="right repairs on new machines")
plt.show()

# %%
# A file holds the weights, not the code
# --------------------------------------
#
# Loading runs no code from the file, so the module is given again.

import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "policy.safetensors"
    policies["DABand, own"].save(path, replay=False)
    again = daband.load(path, encoder=Waves())
    assert (again.decide(test, "target").arm == policies["DABand, own"].decide(test, "target").arm).all()
    try:
        daband.load(path)
    except daband.DabandError as refused:
        print(refused)

# %%
# A network with a name (``encoder="waves"``, for the command line and TOML files) is one file with a ``Features``:
# :doc:`add_your_own` shows how such things are registered.
