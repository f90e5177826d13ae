"""
From two folders of photographs to a service
============================================

**I have labelled photographs of one camera, unlabelled ones of another, and no time to train a
network. What now?**

.. image:: images/sphx_glr_photo_service_001.png
   :alt: photographs of both cameras, and the accuracy in the target with pixels and with features of a pretrained model

A pretrained encoder turns photographs into features, and a policy learns on them in seconds. The
encoder goes into the exported file, so the machine that decides needs neither torch nor the
encoder's library. Here the photographs are patches of images in scikit-image and scikit-learn, and
the second camera is simulated: an illustration, not evidence. Nothing is downloaded: the weights of
``efficientnet_lite0`` are in a package."""

# %%
# Two folders
# -----------
#
# A cleaning machine chooses a programme for the surface that its camera shows. The old camera took
# photographs by day; their folder has a sub-folder for every surface. The new camera works at dusk,
# and its photographs have no labels. The two cameras never show the same spot.

import base64
import importlib.util
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import httpx
import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
from PIL import Image, ImageFilter
from skimage import data
from sklearn.datasets import load_sample_images

import daband

rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
os.environ["DABAND_CACHE"] = str(folder / "cache")  # by default the user's cache folder
china, flower = load_sample_images().images
surfaces = {
    "brick": data.brick(),
    "grass": data.grass(),
    "gravel": data.gravel(),
    "fur": data.chelsea(),
    "roof": china,
    "petals": flower,
}


def photograph(surface: np.ndarray, *, at_dusk: bool) -> Image.Image:
    """Return a patch of 96 pixels: from the left half by day, from the right half at dusk."""
    middle = surface.shape[1] // 2
    height = surface.shape[0]
    column = (
        rng.integers(middle, surface.shape[1] - 96) if at_dusk else rng.integers(0, middle - 96)
    )
    row = rng.integers(0, height - 96)
    patch = Image.fromarray(surface[row : row + 96, column : column + 96]).convert("RGB")
    if not at_dusk:
        return patch
    pixels = np.asarray(patch.filter(ImageFilter.GaussianBlur(0.7)), float) * [0.55, 0.4, 0.3] + 25
    return Image.fromarray(
        np.clip(pixels + 8 * rng.normal(size=pixels.shape), 0, 255).astype(np.uint8)
    )


for name, surface in surfaces.items():
    for number in range(24):
        for split_name, at_dusk in (("day", False), ("dusk", True), ("test", True)):
            if split_name == "test" and number >= 12:
                continue
            # dusk has no labels
            split_folder = folder / split_name / ("" if split_name == "dusk" else name)
            split_folder.mkdir(parents=True, exist_ok=True)
            photograph(surface, at_dusk=at_dusk).save(
                split_folder / f"{rng.integers(10**9):09d}.png"
            )
print({path.name: sum(1 for _ in path.rglob("*.png")) for path in sorted(folder.iterdir())})

# %%
# An encoder by its name
# ----------------------
#
# ``encoder="timm:resnet50"`` or ``"timm:vit_small_patch14_dinov2.lvd142m"`` work in the same way if
# timm is installed; images are resized, cropped and standardised as the model needs it. You can
# also pass a ``torch.nn.Module`` or an ONNX file. Each photograph is encoded once; its features are
# stored on disk.

encoder = "efficientnet_lite0"
if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
    from torch import nn  # any module does, but random features are less useful

    encoder = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
    )
folders = {"source": folder / "day", "target": folder / "dusk", "target_test": folder / "test"}
seconds = []
for _ in range(2):
    start = time.perf_counter()
    pair = daband.domains.from_images(**folders, encoder=encoder)
    seconds.append(time.perf_counter() - start)
print(
    f"{pair.context_shape[0]} features of each photograph; a second time they are read, not"
    " computed"
)
assert seconds[1] < seconds[0]

# %%
# A policy on features and on pixels
# ----------------------------------
#
# For comparison, the same policy is trained on pixels. Labels of the new camera are used only for
# evaluation. Warnings about outliers in the features are hidden here.

warnings.filterwarnings("ignore", message="a context has")
accuracies = {}
pixels = daband.domains.from_images(**folders, framing=32)
for name, compared_pair in (("pixels", pixels), ("features", pair)):
    policy = daband.LinUCB.for_pair(compared_pair, seed=0)
    daband.train(policy, source=compared_pair.source, target=compared_pair.target, episodes=8)
    policy.deploy("target")
    accuracies[name] = daband.evaluate(policy, compared_pair.target_test).accuracy
print({name: round(value, 2) for name, value in accuracies.items()})
assert accuracies["features"] > accuracies["pixels"] + 0.1
assert accuracies["features"] > 0.6

example_paths = [sorted((folder / "day" / name).iterdir())[0] for name in surfaces]
example_paths += [sorted((folder / "test" / name).iterdir())[0] for name in surfaces]
figure, axes = plt.subplots(2, 7, figsize=(9, 2.4), gridspec_kw={"width_ratios": [1] * 6 + [2.4]})
for axis, path in zip(axes[:, :6].flat, example_paths, strict=True):
    axis.imshow(Image.open(path))
    axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[0], surfaces, strict=False):
    axis.set_title(name)
axes[0, 0].set_ylabel("by day")
axes[1, 0].set_ylabel("at dusk")
for axis in axes[:, 6]:
    axis.remove()
bar_axes = figure.add_subplot(axes[0, 6].get_gridspec()[:, 6])
bar_axes.barh(list(accuracies), list(accuracies.values()), color=["#bbbbbb", "#4477aa"])
bar_axes.set(xlim=(0, 1), xlabel="accuracy at dusk")
figure.tight_layout()

# %%
# One file with the encoder inside
# --------------------------------
#
# ``export`` writes the encoder as ONNX, loads the file again, and compares its decisions with those
# of the policy. The file decides on paths, on bytes, or on base64, with onnxruntime and Pillow:
# ``pip install 'daband[onnx]'``.

policy.save(folder / "policy.safetensors")
daband.export(policy, folder / "surfaces.daband", pair=pair, epsilon=0.1)
deployed = daband.load_deployed(folder / "surfaces.daband")
print(f"{(folder / 'surfaces.daband').stat().st_size / 1e6:.0f} MB")
photographs = sorted((folder / "test").rglob("*.png"))
decision = deployed.decide([str(path) for path in photographs])
accuracy = np.mean(
    [name == path.parent.name for name, path in zip(decision.arm_name, photographs, strict=True)]
)
print(f"right for {accuracy:.2f} of the test photographs, with a tenth of the arms drawn at random")

# %%
# A running service
# -----------------
#
# In a shell: ``daband serve surfaces.daband --learn policy.safetensors``. A request has the
# photograph in base64. The machine reports how well the programme went, and the service learns from
# its log.

with socket.socket() as any_port:
    any_port.bind(("127.0.0.1", 0))
    port = any_port.getsockname()[1]
address = f"http://127.0.0.1:{port}"
service = subprocess.Popen(  # noqa: S603 - our own command
    [
        sys.executable,
        "-m",
        "daband",
        "serve",
        folder / "surfaces.daband",
        "--port",
        str(port),
        "--log",
        f"sqlite:///{folder}/events.db",
        "--learn",
        folder / "policy.safetensors",
        "--learn-every",
        "20",
    ],
    stdout=subprocess.DEVNULL,
)
client = httpx.Client(
    base_url=address, timeout=60, transport=httpx.HTTPTransport(retries=8)
)  # retries: until the service listens
rewards = []
try:
    for number, path in enumerate(photographs[::3]):
        content = io.BytesIO()
        Image.open(path).save(content, "JPEG", quality=95)  # what a camera sends
        event = {
            "event_id": f"photo-{number}",
            "context": {"image": base64.b64encode(content.getvalue()).decode()},
        }
        decision = client.post("/decide", json=event).raise_for_status().json()
        rewards.append(float(decision["arm_name"] == path.parent.name))
        reward = {"reward": rewards[-1]}
        client.post(f"/events/photo-{number}/reward", json=reward).raise_for_status()
    print(f"{len(rewards)} photographs over HTTP, mean reward {np.mean(rewards):.2f}")
    deadline = time.monotonic() + 60
    while (
        len(models := httpx.get(f"{address}/models").json()["models"]) < 2
        and time.monotonic() < deadline
    ):
        time.sleep(0.5)
finally:
    service.terminate()
    service.wait()
print(f"{len(models)} models in the log: the exported one, and those that learned from the rewards")
assert np.mean(rewards) > 0.3
