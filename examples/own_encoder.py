"""
Your own encoder
================

**My contexts are neither vectors nor small images. Can I bring my own network?**

.. image:: images/sphx_glr_own_encoder_001.png
   :alt: one signal of each kind in both domains, and the fraction of correct choices with each network

You can use any ``torch.nn.Module`` that maps a batch of B contexts to features (B, ...). Here
contexts are short recordings of a machine with three sensors, and the arms are four repairs. There
are rewards for the old machines. The sensors of the new machines are louder and noisier, and drift.

The data are simulated, and were tuned until the example shows the effect: it is an illustration,
not evidence. Results on real data are on :doc:`other pages </results/index>`."""

# %%
# Recordings of two kinds of machines
# -----------------------------------

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import torch
from torch import nn

import daband

rng = np.random.default_rng(0)
LENGTH = 64
FAULTS = ["bearing", "valve", "belt", "fan"]
PERIODS = [4.0, 6.0, 9.0, 14.0]


def simulate_recordings(n: int, *, is_new: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return signals (n, 3, LENGTH) and their faults (n,).

    A fault is a burst with its own period, at any time.
    """
    faults = rng.integers(0, 4, n)
    time = np.arange(LENGTH)
    centres = rng.uniform(12, LENGTH - 12, (n, 1))
    phases = rng.uniform(0, 2 * np.pi, (n, 1))
    waves = np.sin(2 * np.pi * time / np.array(PERIODS)[faults][:, None] + phases)
    bursts = 2.0 * waves * np.exp(-(((time - centres) / 9.0) ** 2))
    signals = bursts[:, None, :] * rng.uniform(0.6, 1.0, (n, 3, 1)) + 0.35 * rng.normal(
        size=(n, 3, LENGTH)
    )
    if is_new:  # another gain on each sensor, and a hum that is not informative
        hum = np.sin(2 * np.pi * (time + rng.uniform(0, 30, (n, 1))) / 30.0)[:, None, :]
        signals = signals * np.array([2.5, 0.6, 1.4])[:, None] + 0.9 * hum + 0.8
    return signals.astype(np.float32), faults


old, old_faults = simulate_recordings(3000, is_new=False)
new, _ = simulate_recordings(3000, is_new=True)
test, truth = simulate_recordings(1000, is_new=True)
pair = daband.domains.from_arrays(
    source=(old, old_faults), target=new, target_test=(test, truth), class_names=FAULTS
)
print(pair.context_shape, pair.class_names)

# %%
# The network
# -----------
#
# Each sensor is normalised within its recording (``InstanceNorm1d``). Two convolutions along time
# follow, and the maximum over time, because the time of a burst is not informative. daband adds
# dense layers after the module. Each policy gets a copy of the module, so that two policies do not
# share weights.


class Waves(nn.Module):
    """Map signals (B, 3, T) to features (B, 48)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.InstanceNorm1d(3),
            nn.Conv1d(3, 16, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 48, 9, padding=4),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
        )

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
accuracies = {}
for name, policy in policies.items():
    daband.train(policy, source=pair.source, target=pair.target, episodes=25)
    accuracies[name] = daband.evaluate(policy, pair.target_test).accuracy
    source_accuracy = daband.evaluate(policy, pair.source_test, as_domain="source").accuracy
    print(f"{name:20} source {source_accuracy:.3f}  target {accuracies[name]:.3f}")

# %%
# .. note:: The target labels are used only to compare the policies at the end.

figure, axes = plt.subplots(1, 3, figsize=(9, 3), width_ratios=[1, 1, 1.2])
for axis, (name, signals, labels) in zip(
    axes, (("old", old, old_faults), ("new", test, truth)), strict=False
):
    for fault in range(4):
        axis.plot(signals[np.flatnonzero(labels == fault)[0], 2] + 5 * fault, linewidth=1)
    axis.set(title=f"{name} machines", yticks=[0, 5, 10, 15], yticklabels=FAULTS, xlabel="time")
bars = axes[2].barh(
    list(accuracies), list(accuracies.values()), color=["#9fb3c8"] * 3 + ["#0072b2"]
)
axes[2].bar_label(bars, fmt="%.2f", padding=3)
axes[2].invert_yaxis()
axes[2].set(xlim=(0, 1.2), xlabel="right repairs on new machines")
plt.show()

# %%
# A file contains the weights, not the code
# -----------------------------------------
#
# Loading runs no code from the file, so pass the module again.

import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "policy.safetensors"
    policies["DABand, own"].save(path, replay=False)
    loaded = daband.load(path, encoder=Waves())
    assert (
        loaded.decide(test, "target").arm == policies["DABand, own"].decide(test, "target").arm
    ).all()
    try:
        daband.load(path)
    except daband.DabandError as error:
        print(error)

# %% To use a network by name (``encoder="waves"``, on the command line and in TOML files), register
# it: :doc:`add_your_own` shows how.
