"""``daband.export``: a trained policy as one file that decides, without anything that it was trained on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray, ArrayLike, FloatArray, as_numpy
from daband.domains import Contexts, Pair
from daband.domains.readers.images import Framing
from daband.errors import InvalidInput, NotFitted
from daband.handover.deployed import Deployed, deployed_from
from daband.handover.format import FORMAT_VERSION, write_deployed_file
from daband.handover.monitor_reference import MOST_CONTEXTS, build_reference, summary_names
from daband.handover.table_rows import TableRows
from daband.image_layout import image_layout
from daband.linear import PCA, RidgeHead, Standardise
from daband.linear.standardise import CLIP, feature_scale
from daband.policies import Constant, LinUCB, Policy, Random
from daband.policies.input_checks import LARGEST_RAW_NORM, check_domain
from daband.table_transform import TableTransform

__all__ = ["ExportWarning", "export"]

_SMALLEST_SPREAD = 1e-9


class ExportWarning(UserWarning):
    """An exported file may not be what its owner thinks it is."""


def export(
    policy: Policy,
    path: str | Path,
    *,
    pair: Pair | None = None,
    domain: str | None = None,
    arm_names: Sequence[str] | None = None,
    table: TableTransform | None = None,
    images: Framing | int | None = None,
    reference: Contexts | ArrayLike | None = None,
    assessment: Any = None,
) -> None:
    """Write a policy to one file that ``daband.load_deployed`` reads, all or nothing.

    The file holds what decisions need, and nothing that the policy was trained on: no context, no reward, no round id.

    Args:
        policy: a policy of daband's own, trained.
        path: the file.
        pair: the pair it was trained on. What follows from it: arm names, table, images and reference.
        domain: the domain it will act in; by default the one that ``policy.deploy`` set.
        arm_names: a name per arm; by default those of the pair, else "0", "1", ...
        table: the fitted transform that makes contexts of raw rows, where rows of a table will come; by default the
            pair's, else the policy's own.
        images: how image files become contexts, where they will come: the ``Framing``, or the side in pixels.
        reference: contexts of the domain it will act in, (n, *C). Ranges and counts of them go into the file, for
            warnings and for ``Deployed.monitor``. By default those of the pair, else the contexts that the policy
            keeps for replay, else none.
        assessment: what is known of the policy's quality in the target, as ``daband.assess`` returns it, or a mapping.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    >>> skipped = policy.update([[1.0, 0.0], [0.0, 1.0]] * 8, [0, 1] * 8, [1.0, 0.5] * 8)
    >>> daband.export(policy, "market.daband", arm_names=["letter", "call"])
    >>> daband.load_deployed("market.daband").decide([1.0, 0.0]).arm_name in ("letter", "call")
    True
    """
    header, arrays = exported(
        policy,
        pair=pair,
        domain=domain,
        arm_names=arm_names,
        table=table,
        images=images,
        reference=reference,
        assessment=assessment,
    )
    write_deployed_file(path, header, arrays)


def exported(
    policy: Policy,
    *,
    pair: Pair | None = None,
    domain: str | None = None,
    arm_names: Sequence[str] | None = None,
    table: TableTransform | None = None,
    images: Framing | int | None = None,
    reference: Contexts | ArrayLike | None = None,
    assessment: Any = None,
) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Header and arrays of the file that ``export`` writes."""
    kind = _kind(policy)
    where = _domain(policy, domain)
    if pair is not None:
        _check_pair(policy, pair)
        arm_names = pair.class_names if arm_names is None else arm_names
        table = pair.table if table is None else table
    table = policy.table if table is None else table
    if not policy.knows_reward_range:
        raise InvalidInput(
            "policy: reward_range='auto' has not seen enough rewards to know the range; update with more rounds first"
        )
    names = _names(arm_names, policy.n_arms)
    layout = _layout(policy.context_shape)
    header: dict[str, Any] = {
        "policy": policy.name,
        "domain": where,
        "arms": {"names": names},
        "reward_range": [float(bound) for bound in policy.reward_range],
        "rounds_learned": policy.rounds_learned,
        "table": None if table is None else _table(table, policy),
        "images": _image_rule(policy, pair, images, layout),
        "assessment": _as_json(assessment),
        "versions": _versions(torch=kind == "neural"),
        "reference": None,
        "network": None,
        "linear_part": None,
    }
    arrays: dict[str, AnyArray] = {}
    with policy._locks.write, policy._locks.state:  # nobody learns meanwhile
        header["context"] = {
            "shape": list(policy.context_shape),
            "per_arm": policy.arms == "shared",
            "constant": kind == "constant",
            "largest_norm": policy.largest_norm if policy.transform is None else LARGEST_RAW_NORM,
            "feature_names": _feature_names(table, pair),
        }
        header["transform"] = _transform(policy, arrays)
        header["exploration"] = _head(policy, kind, arrays)
        if kind == "neural":
            header["network"] = _network(policy, where, arrays)
            header["linear_part"] = _linear_part(policy, arrays)
        contexts = _replayed(policy, where) if pair is None and reference is None else None
    if reference is None and pair is not None:
        reference = pair.target if where == "target" else pair.source
    if reference is not None:
        contexts = _reference_contexts(policy, reference)
    ranges = _ranges(policy, table, contexts, layout)
    if ranges is not None:
        arrays["ranges/centre"], arrays["ranges/scale"] = ranges
    encoder = None
    if header["network"] is not None and header["network"].get("name") == "custom":
        encoder = policy._experts[0].features.network.features.module  # type: ignore[attr-defined]
    copies = {name: np.array(array) for name, array in arrays.items()}
    deployed = deployed_from({"version": FORMAT_VERSION, **_through_json(header)}, copies, encoder=encoder)
    if contexts is not None:
        header["reference"] = _reference(deployed, contexts, arrays)
    return header, arrays


def _kind(policy: Policy) -> str:
    """Which of the known policies this is; a class derived from one may decide differently, so it is refused."""
    for known, kind in ((Constant, "constant"), (Random, "random"), (LinUCB, "linear")):
        if type(policy) is known:
            return kind
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {type(policy).__name__}")
    if policy.learns_by_gradients:
        from daband.policies import DABand, NeuralLinUCB

        if type(policy) in (DABand, NeuralLinUCB):
            return "neural"
    raise InvalidInput(
        f"the policy {policy.name!r} ({type(policy).__name__}) cannot be exported: its way to decide is its own code; "
        "constant, random, linucb, nlinucb and daband can"
    )


def _domain(policy: Policy, domain: str | None) -> str:
    if domain is not None:
        return check_domain(domain)
    buffers = getattr(policy, "buffers", None)
    if policy.domain == "source" and buffers is not None and len(buffers.target):
        warnings.warn(
            "the policy has seen target contexts but is exported for the source, as policy.deploy was not called; "
            "pass domain='target', or domain='source' to say that it is meant",
            ExportWarning,
            stacklevel=4,
        )
    return policy.domain


def _check_pair(policy: Policy, pair: Pair) -> None:
    if not isinstance(pair, Pair):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    if pair.context_shape != policy.context_shape or pair.arms != policy.arms:
        raise InvalidInput(
            f"pair has {pair.arms} arms and contexts of shape {pair.context_shape}, the policy {policy.arms} arms and "
            f"{policy.context_shape}; give the pair that it was trained on"
        )


def _names(names: Sequence[str] | None, n_arms: int) -> list[str]:
    if names is None:
        return [str(arm) for arm in range(n_arms)]
    if isinstance(names, str):
        raise InvalidInput(f"arm_names must be a list of names, got the text {names!r}")
    listed = [str(name) for name in names]
    if len(listed) != n_arms or len(set(listed)) != n_arms:
        raise InvalidInput(f"arm_names must be {n_arms} different names, one an arm, got {listed}")
    return listed


def _table(table: TableTransform, policy: Policy) -> dict[str, Any]:
    if not isinstance(table, TableTransform):
        raise InvalidInput(f"table must be a daband.domains.TableTransform, got {type(table).__name__}")
    if policy.arms == "shared" or policy.context_shape != (len(table.feature_names),):
        raise InvalidInput(
            f"table makes contexts of {len(table.feature_names)} numbers, the policy takes {policy.context_shape}"
        )
    return table.state()


def _feature_names(table: TableTransform | None, pair: Pair | None) -> list[str]:
    if table is not None:
        return list(table.feature_names)
    return [] if pair is None else list(pair.feature_names)


def _layout(shape: tuple[int, ...]) -> str | None:
    return image_layout(shape) if len(shape) in (2, 3) else None


def _image_rule(
    policy: Policy, pair: Pair | None, images: Framing | int | None, layout: str | None
) -> dict[str, Any] | None:
    if layout is None or policy.arms == "shared":
        if images is not None:
            raise InvalidInput(f"images was given, but contexts of shape {policy.context_shape} are no images")
        return None
    target = None if pair is None else pair.target
    framing = images if images is not None else getattr(target, "framing", None)
    if isinstance(framing, int):
        framing = Framing(framing, framing)
    if framing is None:
        return {"layout": layout}
    if not isinstance(framing, Framing) or framing.shape != policy.context_shape:
        raise InvalidInput(f"images must be a Framing or a side that gives {policy.context_shape}, got {framing!r}")
    normalise = bool(getattr(target, "normalises", False))
    return {"layout": layout, "resize": framing.resize, "crop": framing.crop, "normalise": normalise}


def _transform(policy: Policy, arrays: dict[str, AnyArray]) -> dict[str, Any] | None:
    transform = policy.transform
    if transform is None:
        return None
    if not isinstance(transform, PCA | Standardise):
        raise InvalidInput(
            f"transform: {transform!r} is an object of another library, which a file cannot hold; use daband.PCA or "
            "daband.Standardise, or apply it to the data before daband sees them"
        )
    if not transform.fitted:
        raise NotFitted(f"the policy's {transform!r} is not fitted: train the policy, or call policy.prepare(...)")
    header, state = ({"kind": "pca"}, transform.state()) if isinstance(transform, PCA) else _standardised(transform)
    arrays.update({f"transform/{name}": array for name, array in state.items()})
    return header


def _head(policy: Policy, kind: str, arrays: dict[str, AnyArray]) -> dict[str, Any]:
    if kind == "random":
        return {"rule": "even", "alpha": 0.0, "epsilon": 0.0, "seed": policy.seed}
    head: RidgeHead = policy._head  # type: ignore[attr-defined]
    statistics = head.primal("the policy cannot be exported")
    arrays["head/theta"], arrays["head/inverse"] = statistics.theta.copy(), statistics.inverse.copy()
    own = head.exploration
    return {"rule": own.rule, "alpha": own.alpha, "epsilon": own.epsilon, "seed": policy.seed}


def _network(policy: Any, domain: str, arrays: dict[str, AnyArray]) -> dict[str, Any]:
    from daband.handover.frozen_networks import frozen_network

    encoder = policy._acting.experts[0].features.network
    header, own = frozen_network(encoder, policy.recipe.encoder, domain=domain, layout=policy._layout)
    arrays.update({f"network/{name}": array for name, array in own.items()})
    return header


def _linear_part(policy: Any, arrays: dict[str, AnyArray]) -> dict[str, Any] | None:
    acting = policy._acting
    if len(acting.experts) == 1:
        return None
    expert = acting.experts[1]
    statistics = expert.head.primal("the policy cannot be exported")
    arrays["linear_part/theta"], arrays["linear_part/inverse"] = statistics.theta.copy(), statistics.inverse.copy()
    header, own = _standardised(expert.features.transform)
    arrays.update({f"linear_part/transform/{name}": array for name, array in own.items()})
    return {"transform": header, "weight": acting.shares[1], "width_shares": list(acting.mixture.width_shares)}


def _standardised(transform: Standardise) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    state = transform.state()
    return {"kind": "standardise", "clip": CLIP, "scale": feature_scale(len(state["mean"]))}, state


def _reference_contexts(policy: Policy, reference: Any) -> AnyArray:
    """Some of the contexts of the domain it will act in, (n, ...)."""
    if isinstance(reference, Contexts):
        n = len(reference)
        rows = np.random.default_rng(n).permutation(n)[:MOST_CONTEXTS]
        contexts = reference.read(np.sort(rows).astype(np.int64))
    else:
        contexts = as_numpy(reference, "reference")
        contexts = contexts[np.random.default_rng(len(contexts)).permutation(len(contexts))[:MOST_CONTEXTS]]
    shape = (policy.n_arms, *policy.context_shape) if policy.arms == "shared" else policy.context_shape
    if contexts.shape[1:] != shape:
        raise InvalidInput(f"reference must have shape (n, {', '.join(map(str, shape))}), got {contexts.shape}")
    if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
        raise InvalidInput("reference has a NaN or infinite value")
    return contexts


def _replayed(policy: Any, domain: str) -> AnyArray | None:
    """Contexts that the policy keeps for replay, where they are as they came."""
    if not policy.learns_by_gradients or policy.transform is not None or policy._layout not in (None, "channels_first"):
        return None
    buffer = policy.buffers.target if domain == "target" else policy.buffers.source
    n = min(len(buffer), MOST_CONTEXTS)
    return buffer.contexts[:n].cpu().numpy() if n else None


def _ranges(
    policy: Policy, table: TableTransform | None, contexts: AnyArray | None, layout: str | None
) -> tuple[FloatArray, FloatArray] | None:
    """Centre and deviation (d,) of each number of a context, where contexts are no images and somebody knows them."""
    if layout is not None:
        return None
    if table is not None:
        return TableRows(table).ranges
    if contexts is not None and contexts.dtype != np.uint8 and len(contexts) > 1:
        rows = contexts.reshape(-1, int(np.prod(policy.context_shape))).astype(np.float64)
        centre, deviation = rows.mean(axis=0), rows.std(axis=0)
        return centre, np.maximum(deviation, _SMALLEST_SPREAD * np.maximum(1.0, np.abs(centre)))
    if isinstance(policy.transform, Standardise):
        state = policy.transform.state()
        return state["mean"], state["deviation"]
    return None


def _reference(deployed: Deployed, contexts: AnyArray, arrays: dict[str, AnyArray]) -> dict[str, Any] | None:
    scores, preferred = deployed.summary(contexts)
    names = summary_names(
        deployed.context_shape,
        image=deployed.reader.images is not None,
        feature_names=deployed.feature_names,
        n_arms=deployed.n_arms,
    )
    found = build_reference(names, scores, preferred, n_arms=deployed.n_arms, count_arms=not deployed.per_arm)
    if found is None:
        return None
    arrays["reference/edges"], arrays["reference/counts"] = found.edges, found.counts
    arrays["reference/arms"] = found.arms
    return {"names": list(names), "contexts": int(found.counts[0].sum())}


def _as_json(assessment: Any) -> Any:
    """An assessment as JSON can hold it: a mapping, a dataclass, or an object with ``as_dict``."""
    if assessment is None:
        return None
    for method in ("as_dict", "to_dict"):
        if callable(getattr(assessment, method, None)):
            assessment = getattr(assessment, method)()
    if dataclasses.is_dataclass(assessment) and not isinstance(assessment, type):
        assessment = dataclasses.asdict(assessment)
    if not isinstance(assessment, Mapping):
        raise InvalidInput(f"assessment must be what daband.assess returns, or a mapping, got {assessment!r}")
    try:
        return _through_json(dict(assessment))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"assessment cannot be written as JSON: {error}") from None


def _through_json(value: Any) -> Any:
    """What comes back when this is written to a file and read."""
    return json.loads(json.dumps(value, default=_plain, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _versions(*, torch: bool) -> dict[str, str]:
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    if torch and "torch" in sys.modules:
        versions["torch"] = str(sys.modules["torch"].__version__)
    try:
        versions["daband"] = importlib.metadata.version("daband")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        versions["daband"] = str(sys.modules["daband"].__version__)
    return versions
