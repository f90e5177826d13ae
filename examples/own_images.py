"""
Your own images, with a pretrained encoder
==========================================

**I have two folders of images, labels for one of them, and a pretrained network. How do I combine
them?**

.. image:: images/sphx_glr_own_images_001.png
   :alt: images of both folders, and the fraction of correct choices of three policies on features of a frozen network

The source folder has a sub-folder for every class; the target folder has images without labels. The
network is any ``torch.nn.Module`` from images to features. To run offline in half a minute, this
page uses small digits, and a "pretrained" network that is first trained on other digits. The same
code works with a ResNet.

The data are simulated, and were tuned until the example shows the effect: it is an illustration,
not evidence. Results on real data are on :doc:`other pages </results/index>`."""

# %%
# Two folders
# -----------
#
# The source has clean scans. The images of the target camera are dim, tinted, uneven and noisy.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import torch
from PIL import Image
from torch import nn

import daband

torch.manual_seed(0)
rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
digits = daband.domains.load("digit", form="embedded")
all_images = digits.source.read(np.arange(4000))  # uint8, (n, 3, 28, 28)
all_labels = digits.source.read_rewards(np.arange(4000))[0].argmax(axis=1)
# five classes for the policy; the network below is trained on the other five
our_rows = np.flatnonzero(all_labels < 5)


def simulate_camera(clean: np.ndarray) -> np.ndarray:
    """Return the same images as the new camera takes them."""
    light = np.linspace(20, 110, 28) + rng.uniform(0, 40, (len(clean), 1, 1, 1))
    tint = np.array([0.5, 0.25, 0.35])[:, None, None]
    return np.clip(clean * tint + light + 12 * rng.normal(size=clean.shape), 0, 255).astype(
        np.uint8
    )


def write_images(images: np.ndarray, root: Path, labels: np.ndarray | None = None) -> None:
    """Write image files: ``root/CLASS/0001.png``, or ``root/0001.png`` without labels."""
    for number, image in enumerate(images):
        folder_path = root if labels is None else root / f"digit {labels[number]}"
        folder_path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(folder_path / f"{number:04d}.png")


scan_rows = our_rows[:800]
camera_rows = our_rows[800:1500]
test_rows = our_rows[1500:]
write_images(all_images[scan_rows], folder / "scans", all_labels[scan_rows])
write_images(simulate_camera(all_images[camera_rows]), folder / "camera")  # without labels
write_images(simulate_camera(all_images[test_rows]), folder / "test", all_labels[test_rows])
print(
    {
        folder_path.name: sum(1 for _ in folder_path.rglob("*.png"))
        for folder_path in sorted(folder.iterdir())
    }
)

# %%
# A pair of folders
# -----------------
#
# Images are resized to ``framing`` pixels.

pair = daband.domains.from_images(
    source=folder / "scans",
    target=folder / "camera",
    target_test=folder / "test",
    framing=28,
)
print(pair.context_shape, pair.class_names)

# %%
# A network that was trained elsewhere
# ------------------------------------
#
# A name such as ``encoder="timm:resnet18"`` loads a model of timm,
# as in :ref:`another tutorial <sphx_glr_tutorials_photo_service.py>`. Here a small network is
# trained to classify the *other* five digits, on clean scans.

network = nn.Sequential(
    nn.Conv2d(3, 16, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 5),
    nn.ReLU(),
    nn.AdaptiveMaxPool2d(2),
    nn.Flatten(),
)
classifier = nn.Linear(128, 5)
other_rows = np.flatnonzero(all_labels >= 5)
images = torch.tensor(all_images[other_rows]) / 255
labels = torch.tensor(all_labels[other_rows] - 5)
optimiser = torch.optim.Adam([*network.parameters(), *classifier.parameters()], lr=3e-3)
for _ in range(100):
    batch = torch.randint(len(labels), (64,))
    loss = nn.functional.cross_entropy(classifier(network(images[batch])), labels[batch])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"trained elsewhere: loss {loss.item():.2f}")

# %%
# Frozen: encode once
# -------------------
#
# The features of a frozen network do not change, so ``from_images`` computes them once per image,
# stores them on disk, and the policy is trained on features. So even a large network is fast.
# Another camera is a shift of style, the default for images: features are standardised by the
# statistics of each domain. Here this removes most of the shift, so the alignment of DABand gains
# little more.

feature_pair = daband.domains.from_images(
    source=folder / "scans",
    target=folder / "camera",
    target_test=folder / "test",
    encoder=network,
    framing=28,
)
policies = {
    "LinUCB on features": daband.LinUCB.for_pair(feature_pair, seed=0),
    "Neural-LinUCB on features": daband.NeuralLinUCB.for_pair(feature_pair, recipe="small", seed=0),
    "DABand on features": daband.DABand.for_pair(feature_pair, recipe="small", seed=0),
}
accuracies = {}
for name, policy in policies.items():
    daband.train(policy, source=feature_pair.source, target=feature_pair.target, episodes=40)
    accuracies[name] = daband.evaluate(policy, feature_pair.target_test).accuracy
    print(f"{name:28} {accuracies[name]:.3f} of the test images are correct")

figure, (image_axes, bar_axes) = plt.subplots(1, 2, figsize=(9, 2.8), width_ratios=[1, 1])
example_images = [pair.source.read(np.arange(0, 720, 120)), pair.target.read(np.arange(6))]
image_axes.imshow(
    np.concatenate(
        [np.concatenate(list(row.transpose(0, 2, 3, 1)), axis=1) for row in example_images]
    )
)
image_axes.set(xticks=[], yticks=[14, 42], yticklabels=["source", "target"])
bars = bar_axes.barh(
    list(accuracies), list(accuracies.values()), color=["#9fb3c8"] * 2 + ["#0072b2"]
)
bar_axes.bar_label(bars, fmt="%.2f", padding=3)
bar_axes.invert_yaxis()
bar_axes.set(xlim=(0, 1.15), xlabel="right choices in the target")
plt.show()

# %%
# Trained further
# ---------------
#
# If a module is the policy's ``encoder=``, a copy of it is trained further on the images. This
# needs a GPU or much time; here are two episodes, to show the call.

policy = daband.DABand.for_pair(pair, encoder=network, recipe="small", seed=0)
run = daband.train(policy, source=pair.source, target=pair.target, episodes=2)
print(policy)
