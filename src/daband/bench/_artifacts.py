"""Keep artifacts of a run for reports: a confusion matrix, and features in a plane.

``artifacts.npz`` in a run's folder holds those that exist for the pair and the policy:

* ``confusion`` (K, K): number of target contexts by right arm (row) and chosen arm (column), for about 2,000 contexts.
* ``latent`` (m, 2): features projected on their first two principal components; ``latent_domain`` (m,) is 0
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
from daband._arrays import AnyArray, IntArray
from daband._files import write_json, write_npz
from daband.domains._contract import LoggedDomain, Pair
from daband.evaluation._zero_shot import best_arms
from daband.policies._policy import Policy

#: Target contexts of the confusion matrix, read in evenly spaced chunks of the domain.
_CONTEXTS = 2000
_CHUNK = 50
#: Contexts of each domain in the feature map.
_LATENTS = 500
#: With more arms the confusion matrix is too large to keep.
_MAX_ARMS = 1000


class ArtifactWarning(UserWarning):
    """The artifacts of a run could not be kept; its result is valid."""


def gather(pair: Pair, policy: Policy, folder: Path, rule: str) -> None:
    """Write ``artifacts.npz`` and ``environment.json`` into the run's folder.

    An error is a warning here, and a note in ``environment.json``: the run itself is finished.
    """
    about = environment(policy)
    try:
        # With shared arms an arm index has a different meaning in every round.
        columns = _columns(pair, policy, rule) if pair.arms == "disjoint" else {}
        write_npz(folder / "artifacts.npz", columns, compressed=True)
    except Exception as error:
        about["artifacts_error"] = f"{type(error).__name__}: {error}"
        message = f"{folder.name}: its artifacts could not be kept ({about['artifacts_error']})"
        warnings.warn(message, ArtifactWarning, stacklevel=2)
    finally:
        write_json(folder / "environment.json", about)


def _columns(pair: Pair, policy: Policy, rule: str) -> dict[str, AnyArray]:
    columns: dict[str, AnyArray] = {}
    if pair.target_test is None:
        contexts: AnyArray = pair.target.batch(0, min(len(pair.target), _LATENTS), seed=0)
        right = np.full(len(contexts), -1, np.int64)
    else:
        parts = []
        for name, part in pair.target_test.by_name.items():
            starts = range(0, len(part), max(_CHUNK, len(part) * _CHUNK // _CONTEXTS))
            for start, stop in ((start, min(start + _CHUNK, len(part))) for start in starts):
                seen = part.read(start, stop)
                arms = policy.decide(seen, name or "target", rule=rule, round_offset=start).arm
                parts.append((seen, right_arms(part.read_expected(start, stop), arms), arms))
        contexts, right, chosen = (np.concatenate(each) for each in zip(*parts, strict=True))
        if pair.n_arms <= _MAX_ARMS:
            columns["confusion"] = np.zeros((pair.n_arms, pair.n_arms), np.int32)
            np.add.at(columns["confusion"], (right, chosen), 1)
    if hasattr(policy, "latent"):
        rows = np.linspace(0, len(contexts) - 1, min(len(contexts), _LATENTS)).round().astype(np.int64)
        columns |= _latents(pair, policy, contexts[rows], right[rows])
    return columns


def right_arms(expected: AnyArray, chosen: IntArray) -> IntArray:
    """Return the best arm of each context, (B,), by expected rewards (B, K); if tied, the chosen one."""
    is_best = best_arms(expected)[np.arange(len(chosen)), chosen]
    return np.where(is_best, chosen, expected.argmax(axis=1))


def environment(policy: Policy | None = None) -> dict[str, Any]:
    """Return versions and hardware as JSON values, without names of machines or people."""
    wanted = None if policy is None else policy.settings().get("device")
    device, accelerator = "cpu", None  # a linear policy; torch is not imported for it
    if wanted is not None:
        from daband.neural.learning._torch_settings import device_named, gpu_name

        device, accelerator = str(device_named(wanted)), gpu_name(wanted)
    return {
        "daband": daband.__version__, "commit": _commit(), "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch", "numba", "scikit-learn")},
        "system": f"{platform.system()} {platform.machine()}", "processor": _processor(), "cpus": os.cpu_count(),
        "device": device, "accelerator": accelerator,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _latents(pair: Pair, policy: Policy, target: AnyArray, target_arm: IntArray) -> dict[str, AnyArray]:
    """Return features of both domains, projected on their first two principal components."""
    from sklearn.decomposition import PCA

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


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """Return the commit of the source tree that daband is imported from ("-dirty" if changed).

    Without a git directory (an installed package, a copy of the tree), return ``DABAND_COMMIT``, or None.
    """
    tree = Path(__file__).resolve().parents[3]
    if not ((tree / ".git").exists() and (tree / "pyproject.toml").exists()):
        # Git is not asked here: it would report a repository that only contains the installed package.
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
