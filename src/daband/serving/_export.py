"""Write a trained policy to one file, without its training data. ``load_deployed`` reads the file.

``export`` is the public function. The functions after it check the policy, and compute the parts of
the file.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import platform
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_class_names, check_finite
from daband.base._arrays import AnyArray, as_numpy
from daband.base._files import check_writable, write_bytes
from daband.base._tensor_files import write_tensor_file
from daband.errors import CheckpointError, InvalidInput
from daband.features._costs import ArmCosts
from daband.features._image_layout import find_image_layout
from daband.serving._deployed_policy import (
    FORMAT,
    build_deployed,
    find_arm_index,
    load_deployed,
)
from daband.serving._frozen_policy import FrozenPolicy
from daband.serving._limits import Limit, fit_limits, parse_limits
from daband.serving._monitor import MAX_CONTEXTS, build_reference

#: The number of contexts on which the written file is compared with the policy.
_N_CHECKED_CONTEXTS = 4
#: The approximate number of contexts on which exploration is summarised.
_N_SUMMARY_CONTEXTS = 2000
#: The largest allowed difference of scores between file and policy, as a fraction of the largest
#: score. Networks are written in single precision.
_MAX_RELATIVE_ERROR = 1e-3


class ExportWarning(UserWarning):
    """A warning that an exported policy may behave differently than expected."""


def export(
    policy: Any,
    path: str | Path,
    *,
    pair: Any = None,
    domain: str | None = None,
    arm_names: Sequence[str] | None = None,
    reference: Any = None,
    assessment: Any = None,
    incumbent: str | int | None = None,
    epsilon: float | None = None,
    explore: str | None = None,
    at_most: Mapping[str, float] | Sequence[Limit] | None = None,
    max_cost: float | None = None,
    costs: Mapping[str, float] | None = None,
    pilot: Mapping[str, Any] | None = None,
) -> None:
    """Write a policy to a file that ``daband.load_deployed`` reads.

    Before the file is written to ``path``, its decisions on a few contexts are compared with the
    policy's.

    The file has no contexts and no round ids. But statistics of few rounds can reveal individual
    rounds. If an arm was chosen once, the context and the reward of this round can be computed from
    the file. If rounds are confidential, export only policies with many rounds of each arm
    (``policy.counts``).

    Args:
        policy: a trained policy.
        path: the file to write.
        pair: the ``daband.domains.Pair`` that the policy was trained on. It provides the names of
            arms, the table, the size of images and the reference.
        domain: the domain that the policy will act in; by default the domain set by
            ``policy.deploy``.
        arm_names: a name per arm; by default ``policy.arm_names``, otherwise the pair's, otherwise
            "0", "1", ...
        reference: contexts of the domain that the policy will act in, (n, *C), or a domain's
            ``Contexts``. Histograms of them are written to the file, for ``DeployedPolicy.monitor``.
            The default is the contexts of the pair, or without a pair the contexts that the policy
            stores for replay.
        assessment: the policy's estimated quality in the target, as ``daband.assess`` returns it,
            or a mapping.
        incumbent: the arm, by name or index, that is always chosen today; by default the arm that
            the assessment compares with. ``DeployedPolicy.decide(control=)`` and ``daband serve
            --control`` choose it for some rows.
        epsilon: the probability with which an arm is drawn uniformly; by default the policy's
            value. A log of such decisions can be used to evaluate other policies and to learn.
        explore: "ucb", "greedy" or "igw" (``daband.linear.Exploration``). By default the policy's
            rule, or "greedy" if ``epsilon`` is given. A deployed policy does not learn, so with
            "ucb" it chooses the same uncertain arm in every round until it is replaced. With
            "greedy", matrices above 8 MiB that are only used for bonuses are dropped.
        at_most: the largest fraction of decisions for each limited arm, e.g. ``{"call": 0.05}``.
            The price of a limit is found on ``reference``, and ``decide`` counts the use.
        max_cost: the largest mean cost per decision.
        costs: the cost of each arm for ``max_cost``, 0 for arms that are not given; by default the
            costs that were subtracted from the policy's rewards.
        pilot: the settings of a pilot, ``daband.open_market(folder).pilot.settings``. The file then draws
            the policy or the incumbent with the probability that the limit of the cost allows, and
            does not explore otherwise.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    >>> skipped = policy.update([[1.0, 0.0], [0.0, 1.0]] * 8, [0, 1] * 8, [1.0, 0.5] * 8)
    >>> daband.export(policy, "market.daband", arm_names=["letter", "call"], epsilon=0.1)
    >>> round(float(daband.load_deployed("market.daband").decide([1.0, 0.0]).propensity), 2) in (0.95, 0.05)
    True
    """
    if pilot is not None:
        if epsilon or explore not in (None, "greedy") or at_most or max_cost is not None:
            raise InvalidInput(
                "epsilon, explore, at_most and max_cost cannot be combined with pilot, whose only"
                " random draw is that of the policy or the incumbent"
            )
        epsilon, explore = 0.0, "greedy"
    frozen = freeze(policy, domain, epsilon, explore)
    _warn_about_unused_features(frozen)
    arm_names = policy.arm_names if arm_names is None else arm_names
    framing = policy.framing
    if pair is not None:
        _check_pair(frozen, pair)
        arm_names = pair.class_names if arm_names is None else arm_names
        if frozen.table is None:
            frozen = dataclasses.replace(frozen, table=pair.table)
        framing = framing or pair.target.framing
        if reference is None:
            reference = pair.source if frozen.domain == "source" else pair.target
    column = None if pilot is None else pilot.get("incumbent_column")
    if column is not None:
        if frozen.table is None:
            raise InvalidInput(
                f"rows need a table for the column {column!r} of today's arms: pass pair="
            )
        # the column is known, but it is not part of the context
        ids = (*frozen.table.ids, column)
        frozen = dataclasses.replace(frozen, table=dataclasses.replace(frozen.table, ids=ids))
    layout = (
        find_image_layout(frozen.context_shape) if len(frozen.context_shape) in (2, 3) else None
    )
    contexts = frozen.reference if reference is None else _sample_reference(frozen, reference)
    table = frozen.table
    header: dict[str, Any] = {
        **frozen.build_header(),
        "arm_names": list(check_class_names(arm_names, frozen.n_arms, "arm_names")),
        "feature_names": list(
            table.feature_names if table is not None else () if pair is None else pair.feature_names
        ),
        "images": _to_image_rule(frozen, framing, layout),
        "assessment": _assessment_to_json(assessment),
        "versions": {**_get_package_versions(), "policy": str(policy.version)},
        "log_parts": sorted(policy.log_parts),
        "costs": None if policy.costs is None else dataclasses.asdict(policy.costs),
        "limits": None,
        "incumbent": None,
        "reference": None,
        "pilot": None if pilot is None else dict(pilot),
        "exploration_summary": None,
    }
    if incumbent is None and header["assessment"] is not None:
        incumbent = header["assessment"].get("incumbent_arm")
    if incumbent is not None:
        header["incumbent"] = find_arm_index(incumbent, header["arm_names"], "incumbent")
    if at_most or max_cost is not None:
        arm_costs = ArmCosts.parse(costs, header["arm_names"]) or policy.costs
        header["limits"] = _fit_limits(
            frozen, header["arm_names"], arm_costs, at_most, max_cost, contexts
        )
    if pilot is not None and header["incumbent"] is None and column is None:
        raise InvalidInput("a pilot needs an incumbent: pass incumbent=ARM")
    arrays = frozen.collect_arrays()
    deployed = build_deployed(frozen, _copy_as_json(header), reference=None)
    if contexts is not None and len(contexts) and pilot is None and not header["limits"]:
        sample = contexts[:: max(1, len(contexts) // _N_SUMMARY_CONTEXTS)]
        fraction, error = frozen.summarise_exploration(sample)
        header["exploration_summary"] = (fraction, error) if np.isfinite(error) else (0.0, 0.0)
    if contexts is not None:
        new_reference = build_reference(deployed, contexts)
        if new_reference is not None:
            header["reference"] = {
                "names": list(new_reference.names),
                "contexts": int(new_reference.counts[0].sum()),
            }
            arrays |= {
                "reference/edges": new_reference.edges,
                "reference/counts": new_reference.counts,
            }
            arrays["reference/arms"] = new_reference.arm_counts
    check_writable(path)
    with tempfile.TemporaryDirectory() as folder:
        temporary_file = Path(folder) / "policy.daband"
        write_tensor_file(temporary_file, FORMAT, header, arrays)
        _check_file(temporary_file, policy, frozen, contexts)
        write_bytes(path, temporary_file.read_bytes())


def _fit_limits(
    frozen: FrozenPolicy,
    arm_names: Sequence[str],
    costs: ArmCosts | None,
    at_most: Mapping[str, float] | Sequence[Limit] | None,
    max_cost: float | None,
    contexts: AnyArray | None,
) -> Sequence[Limit]:
    """Return the limits in the arguments of ``export``, with prices for these contexts."""
    if at_most is not None and not isinstance(at_most, Mapping):
        return at_most
    if contexts is None:
        raise InvalidInput("limits need contexts of the target: pass pair= or reference=")
    means = None if costs is None else costs.means
    limits = parse_limits(at_most, max_cost, means, arm_names, frozen.offered)
    mean, bonus = frozen.score(contexts)
    scores = mean + frozen.exploration.bonus_factor * bonus
    if frozen.offered is not None:
        scores = np.where(frozen.offered, scores, -np.inf)
    return fit_limits(scores, limits)


def _check_file(file: Path, policy: Any, frozen: FrozenPolicy, contexts: AnyArray | None) -> None:
    """Raise an error if the scores of the file on a few contexts differ from the policy's scores."""
    deployed = load_deployed(file)
    rng = np.random.default_rng(0)
    if contexts is not None:
        rows = contexts[:_N_CHECKED_CONTEXTS]
    elif len(frozen.context_shape) > 1:
        rows = rng.integers(0, 256, (_N_CHECKED_CONTEXTS, *frozen.row_shape), np.uint8)
    else:
        rows = rng.normal(size=(_N_CHECKED_CONTEXTS, *frozen.row_shape))
    bonus_factor = frozen.exploration.bonus_factor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rows may be far from the training rows
        by_policy = policy.decide(rows, frozen.domain, rule="ucb" if bonus_factor else "greedy")
        by_file = deployed.decide(rows, control=0.0)
    expected_scores = (
        by_policy.mean + bonus_factor * by_policy.bonus if bonus_factor else by_policy.mean
    )
    file_scores = by_file.mean + bonus_factor * by_file.bonus if bonus_factor else by_file.mean
    max_score = float(np.abs(expected_scores).max())
    has_same_shape = expected_scores.shape == file_scores.shape
    max_difference = (
        float(np.abs(expected_scores - file_scores).max()) if has_same_shape else np.inf
    )
    if max_difference <= _MAX_RELATIVE_ERROR * max_score:
        return
    current_rule = policy.frozen(frozen.domain)  # another thread may have changed the policy since
    if current_rule.n_arms == frozen.n_arms and np.array_equal(
        current_rule.score(rows)[0], frozen.score(rows)[0]
    ):
        raise CheckpointError(
            "nothing was written, because the file does not decide as the policy does: scores of"
            f" up to {max_score:g} differ by {max_difference:g}. This is a defect of"
            f" {type(policy).__name__}, or of daband"
        )


def freeze(
    policy: Any, domain: str | None, epsilon: float | None, explore: str | None = None
) -> FrozenPolicy:
    """Return the decision rule of a policy in a domain.

    ``epsilon`` and ``explore`` replace its settings if given. With ``epsilon``, the default rule is
    "greedy".
    """
    if not callable(getattr(policy, "frozen", None)):
        raise InvalidInput(f"policy must be a daband policy, got {type(policy).__name__}")
    frozen = policy.frozen(domain)
    if domain is None and frozen.domain == "source" and frozen.has_seen_target:
        warnings.warn(
            "the policy has seen target contexts but is exported for the source, because"
            " policy.deploy was not called; pass domain='target', or domain='source' to confirm",
            ExportWarning,
            stacklevel=3,
        )
    exploration = frozen.exploration
    if epsilon is not None:
        exploration = dataclasses.replace(exploration, epsilon=check_finite("epsilon", epsilon))
    if explore or epsilon:
        exploration = dataclasses.replace(exploration, rule=explore or "greedy")
    predictor = frozen.predictor
    if exploration.rule == "greedy":
        predictor = predictor.without_large_inverses()
    return dataclasses.replace(frozen, exploration=exploration, predictor=predictor)


def _warn_about_unused_features(frozen: FrozenPolicy) -> None:
    """Warn if arms have no reward, and the policy does not use their features."""
    catalogue = frozen.catalogue
    counts = frozen.round_counts
    if (
        catalogue is None
        or counts is None
        or len(counts) != frozen.n_arms
        or frozen.predictor.uses_arm_features
    ):
        return
    n_unrewarded = int(((counts == 0) & catalogue.offered[0]).sum())
    if n_unrewarded:
        warnings.warn(
            f"{n_unrewarded} arms have no reward, and this {frozen.policy!r} policy does not use"
            " arm features, so it cannot predict their rewards: use for_pair of LinUCB,"
            " NeuralLinUCB, DABand or Mixture",
            ExportWarning,
            stacklevel=3,
        )


def _check_pair(frozen: FrozenPolicy, pair: Any) -> None:
    """Raise an error if the policy cannot have been trained on this pair."""
    if not hasattr(pair, "class_names"):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    if pair.context_shape != frozen.context_shape or pair.arms != frozen.arms:
        raise InvalidInput(
            f"pair has {pair.arms} arms and contexts of shape {pair.context_shape}, the policy"
            f" {frozen.arms} arms and {frozen.context_shape}; pass the pair that it was trained on"
        )


def _to_image_rule(
    frozen: FrozenPolicy, framing: tuple[int, int] | None, layout: str | None
) -> dict[str, Any] | None:
    """Return the fields of an ``ImageRule``, or None if contexts are not images.

    ``framing`` is (resize, crop).
    """
    if layout is None or frozen.arms == "shared":
        return None
    if framing is None:
        return {"layout": layout}
    resize, crop = framing
    if frozen.context_shape != (3, crop, crop):
        raise InvalidInput(
            f"policy.framing must crop to the contexts {frozen.context_shape}, got {framing}"
        )
    return {"layout": layout, "resize": resize, "crop": crop}


def _sample_reference(frozen: FrozenPolicy, reference: Any) -> AnyArray:
    """Return a sample of at most 4,096 reference contexts, (n, *row_shape)."""
    is_domain = callable(getattr(reference, "read", None))
    data: Any = reference if is_domain else as_numpy(reference, "reference")
    if not is_domain and not (data.ndim and len(data)):
        raise InvalidInput(f"reference must have at least one row, got shape {data.shape}")
    indices = np.sort(np.random.default_rng(len(data)).permutation(len(data))[:MAX_CONTEXTS])
    contexts: AnyArray = data.read(indices.astype(np.int64)) if is_domain else data[indices]
    if contexts.shape[1:] != frozen.row_shape:
        shape = ", ".join(map(str, frozen.row_shape))
        raise InvalidInput(f"reference must have shape (n, {shape}), got {contexts.shape}")
    if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
        raise InvalidInput("reference must be finite, but a row has a NaN or infinite value")
    return contexts


def _assessment_to_json(assessment: Any) -> Any:
    """Return an assessment, which is a mapping or has ``as_dict``, as a dictionary of JSON
    types.
    """
    if assessment is None:
        return None
    if callable(getattr(assessment, "as_dict", None)):
        assessment = assessment.as_dict()
    if not isinstance(assessment, Mapping):
        raise InvalidInput(
            f"assessment must be a daband Assessment or a mapping, got {assessment!r}"
        )
    try:
        return _copy_as_json(dict(assessment))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"assessment cannot be written as JSON: {error}") from None


def _copy_as_json(value: Any) -> Any:
    """Return a copy of a value in JSON types, by writing and reading it as JSON."""
    to_python_type = operator.methodcaller("tolist")  # of numpy
    return json.loads(json.dumps(value, default=to_python_type, allow_nan=False))


def _get_package_versions() -> dict[str, str]:
    """Return the versions of Python and of the imported packages."""
    versions = {"python": platform.python_version()}
    for name in ("daband", "numpy", "torch"):
        if name in sys.modules:
            versions[name] = str(sys.modules[name].__version__)
    return versions
