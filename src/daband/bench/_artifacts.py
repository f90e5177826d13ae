"""Keep artifacts of a run for reports: a confusion matrix, misclassified images, and latent features in a plane.

``artifacts.npz`` in a run's folder holds those that exist for the pair and the policy:

* ``confusion`` (K, K): number of target contexts by right arm (row) and chosen arm (column).
* ``wrong_right``, ``wrong_chosen`` (n,), ``wrong_images`` (n, h, w[, 3]): target images that the policy got wrong.
* ``latent`` (m, 2): latent features in the plane of their first two principal components; ``latent_domain`` (m,) is 0
  for the source and 1 for the target, ``latent_arm`` (m,) the right arm, or -1 if unknown.

``environment.json`` has versions and hardware.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
import warnings
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband._arrays import AnyArray, FloatArray, IntArray
from daband._files import write_json, write_npz
from daband._image_layout import channels_first, channels_last, image_layout
from daband.domains._contract import LoggedDomain, Pair
from daband.evaluation._zero_shot import best_arms
from daband.linear._exploration import Decision
from daband.policies._policy import Policy

_EXAMPLES = 24
#: Contexts of each domain whose latents are kept.
_LATENTS = 500
_PICTURE_SIDE = 64
#: Beyond it a table of arms by arms is too large to keep or to look at.
_MOST_ARMS = 1000


class ArtifactWarning(UserWarning):
    """The artifacts of a run could not be kept; its result stands."""


class ArtifactRecorder:
    """Records what evaluation decides (``evaluate(..., observe=recorder.see)``), so that nothing is decided twice.

    It keeps counts, an even sample of contexts for their latents, and wrong examples, of each class only a few.
    """

    def __init__(self, pair: Pair) -> None:
        self.arms_mean_something = pair.arms == "disjoint"  # with shared arms, arm 3 is another thing in every round
        self.n_arms = pair.n_arms
        self.confusion: IntArray | None = None
        if self.arms_mean_something and pair.target_test is not None and pair.n_arms <= _MOST_ARMS:
            self.confusion = np.zeros((pair.n_arms, pair.n_arms), np.int64)
        n = len(pair.target if pair.target_test is None else pair.target_test)
        self._sampled = np.unique(np.linspace(0, n - 1, min(n, _LATENTS)).round().astype(np.int64))
        self.contexts: list[AnyArray] = []
        self.best: list[IntArray] = []
        self._per_class = max(3, -(-_EXAMPLES // pair.n_arms))
        self._kept = np.zeros(pair.n_arms, np.int64)
        #: Turn of its class, right arm, chosen arm and image of every example.
        self._wrong: list[tuple[int, int, int, AnyArray]] = []
        self._are_images = image_layout(pair.context_shape) is not None
        self._seen = 0

    def see(self, contexts: AnyArray, expected: FloatArray | None, decision: Decision) -> None:
        """Look at one batch of decisions; without expected rewards, contexts alone are kept."""
        if not self.arms_mean_something:
            return
        rows = np.arange(len(contexts))
        if expected is None:
            wrong, right = np.zeros(len(rows), np.bool_), np.full(len(rows), -1, np.int64)
        else:
            wrong = ~best_arms(expected)[rows, decision.arm]
            right = np.where(wrong, expected.argmax(axis=1), decision.arm)  # of several best arms the chosen one
        if self.confusion is not None:
            np.add.at(self.confusion, (right, decision.arm), 1)
        first, last = np.searchsorted(self._sampled, [self._seen, self._seen + len(contexts)])
        sampled = self._sampled[first:last] - self._seen
        if len(sampled):
            self.contexts.append(contexts[sampled].copy())
            self.best.append(right[sampled])
        for row in np.flatnonzero(wrong) if self._are_images else ():
            turn = int(self._kept[right[row]])
            if turn < self._per_class:
                self._kept[right[row]] += 1
                self._wrong.append((turn, int(right[row]), int(decision.arm[row]), _picture(contexts[row])))
        self._seen += len(contexts)

    def examples(self) -> dict[str, AnyArray]:
        """Return the wrong images as columns, a few of every class; empty if there are none."""
        if not self._wrong:
            return {}
        examples = sorted(self._wrong, key=lambda example: example[:2])[:_EXAMPLES]
        _, right, chosen, images = zip(*examples, strict=True)
        return {"wrong_right": np.array(right), "wrong_chosen": np.array(chosen), "wrong_images": np.stack(images)}


def gather(pair: Pair, policy: Policy, folder: Path, recorder: ArtifactRecorder) -> None:
    """Write ``artifacts.npz`` and ``environment.json`` into the run's folder.

    A finished run is worth more than its pictures: what goes wrong here is a warning, and a note in
    ``environment.json`` that reports show.
    """
    about = environment(policy)
    try:
        columns = recorder.examples()
        if recorder.confusion is not None:
            columns["confusion"] = recorder.confusion.astype(np.int32)
        if hasattr(policy, "latent") and recorder.contexts:
            columns |= _latents(pair, policy, recorder)
        write_npz(folder / "artifacts.npz", columns, compressed=True)
    except Exception as error:
        about["artifacts_error"] = f"{type(error).__name__}: {error}"
        message = f"{folder.name}: its artifacts could not be kept ({about['artifacts_error']})"
        warnings.warn(message, ArtifactWarning, stacklevel=2)
    finally:
        write_json(folder / "environment.json", about)


def environment(policy: Policy | None = None) -> dict[str, Any]:
    """Versions and hardware, as JSON can hold them; names no machine and no person."""
    wanted = None if policy is None else policy.settings().get("device")
    device, accelerator = "cpu", None  # a linear policy; torch is not imported to say so
    if wanted is not None:
        from daband.neural._devices import device_named, gpu_name

        device, accelerator = str(device_named(wanted)), gpu_name(wanted)
    return {
        "daband": daband.__version__, "commit": _commit(), "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch", "numba", "scikit-learn")},
        "system": f"{platform.system()} {platform.machine()}", "processor": _processor(), "cpus": os.cpu_count(),
        "device": device, "accelerator": accelerator,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _latents(pair: Pair, policy: Policy, recorder: ArtifactRecorder) -> dict[str, AnyArray]:
    """Return latent features of both domains in the plane of their first two principal components."""
    from sklearn.decomposition import PCA

    target, target_arm = np.concatenate(recorder.contexts), np.concatenate(recorder.best)
    source = pair.source
    n = min(len(source), _LATENTS)
    if isinstance(source, LoggedDomain):
        contexts: AnyArray = source.batch(0, n, seed=0)
        source_arm = np.full(n, -1, np.int64)
    else:
        rounds = source.rounds(0, n, seed=0)
        contexts = rounds.contexts
        source_arm = (rounds.rewards if rounds.expected is None else rounds.expected).argmax(axis=1)
    parts = [policy.latent(contexts, "source"), policy.latent(target, "target")]  # type: ignore[attr-defined]
    latents = np.concatenate(parts)
    return {
        "latent": PCA(min(2, *latents.shape), svd_solver="full").fit_transform(latents).astype(np.float32),
        "latent_domain": np.repeat(np.array([0, 1], np.uint8), [n, len(target)]),
        "latent_arm": np.concatenate([source_arm, target_arm]).astype(np.int32),
    }


def _picture(image: AnyArray) -> AnyArray:
    """An image as bytes (h, w) or (h, w, channels), shrunk to what a page shows."""
    values = channels_first(image, image_layout(image.shape)).astype(np.float64)
    if image.dtype != np.uint8:  # normalised contexts: stretched to what a screen can show
        low, high = float(values.min()), float(values.max())
        values = (values - low) * (255.0 / ((high - low) or 1.0))
    step = -(-max(values.shape[1:]) // _PICTURE_SIDE)
    if step > 1:
        rows, columns = (side // step * step for side in values.shape[1:])
        cut = values[:, :rows, :columns]
        values = cut.reshape(len(cut), rows // step, step, columns // step, step).mean(axis=(2, 4))
    picture = values.round().astype(np.uint8)
    return channels_last(picture, "channels_first")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the source tree that daband is imported from ("-dirty" if changed).

    Where there is no git directory (an installed package, a copy of the tree), what ``DABAND_COMMIT`` says, or None.
    """
    tree = Path(__file__).resolve().parents[3]
    if not ((tree / ".git").exists() and (tree / "pyproject.toml").exists()):
        # Not git's answer: a repository around an installed package would be taken for its own.
        return os.environ.get("DABAND_COMMIT") or None
    try:
        answer = subprocess.run(  # noqa: S603
            ["git", "-C", str(tree), "describe", "--exclude=*", "--always", "--abbrev=12", "--dirty"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


@lru_cache(maxsize=1)
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
