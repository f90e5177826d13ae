"""Define the named recipes, and resolve the argument ``recipe=`` of neural policies.

A ``Recipe`` has all settings of a neural policy. R, P and D are terms of the paper: regression
error, predicted reward and data divergence (``daband.py``).

* ``default`` is the recommended recipe.
* ``default-rpd`` also has the terms R and P, for ablations.
* ``small`` is ``default`` with a narrower network and fewer steps, which take a few minutes on a
  CPU.
* ``paper`` is Algorithm 1 with the paper's settings (``daband.py``).

``default`` and ``small`` depend on the assumed ``shift``: they have target terms only if the
domains differ in style. Neural-LinUCB has only the source regret of a named recipe.
``docs/results/protocol.md`` lists the data sets on which the defaults were chosen.

A recipe can also be given as changes to a named one, in a form that JSON and TOML can represent:
``{"base": "paper", "weights": {"data_divergence": 5}, "learning": {"learning_rate": 1e-3}}``. Without
``base`` it changes "default".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from torch import nn

from daband.base._registry import Registry
from daband.errors import InvalidInput
from daband.features._catalogue import Catalogue
from daband.features._image_layout import find_image_layout
from daband.features._shift import Shift, get_default_shift
from daband.features._standardise import Standardise
from daband.features._transforms import Transform
from daband.neural._settings import (
    CUSTOM,
    SOURCE_REGRET_TERMS,
    EncoderSettings,
    LearningSettings,
    Recipe,
    Weight,
    parse_recipe,
)
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.encoders._encoder import DenseSettings
from daband.policies._pair_defaults import count_joint_components

#: The registry of functions that return a recipe, for images or for all other contexts.
recipes: Registry[Callable[[bool], Recipe]] = Registry("recipe", "daband.neural")

#: The recipes that depend on the assumed shift.
_SHIFT_DEPENDENT_RECIPES = ("default", "small")
#: The fraction of a run in which the weights of target terms grow: 6,000 of the 19,200 steps of 300
#: episodes.
_RAMP_FRACTION = 0.3125
#: The number of gradient steps per episode on vectors if nothing is aligned. 32 steps overfit
#: tables: with 8 steps, the mean advantage over the best simple method on 44 pairs of the
#: development data sets is higher by 0.002, and a run takes a third of the time.
_UNALIGNED_STEPS_PER_EPISODE = 8
#: The factor by which the frequency of an arm in the target may differ from the one that is assumed
#: without ``shift="labels"``. Without a limit, self-training can label all contexts
#: of one arm as another arm.
_MAX_FREQUENCY_RATIO = 4.0
#: The minimum number of gradient steps of a run on small contexts with more than two arms.
_MIN_RUN_STEPS = 1024
#: The minimum number of gradient steps of a run on small contexts with two arms. More steps
#: overfit.
_MIN_RUN_STEPS_WITH_TWO_ARMS = 256
#: The maximum number of dimensions of a small context.
_MAX_SMALL_DIMENSIONS = 64


def resolve_recipe(
    recipe: str | Recipe | Mapping[str, Any] | None,
    *,
    context_shape: tuple[int, ...],
    encoder: str | EncoderSettings | nn.Module | None = None,
    n_arms: int = 2,
    source_only: bool = False,
    shift: Shift | None = None,
    transform: Transform | None = None,
    catalogue: Catalogue | None = None,
) -> Recipe:
    """Return the recipe that the arguments of a neural policy select.

    Args:
        recipe: a name, a ``Recipe``, or a mapping; None means "default". A mapping with every group
            of settings, as ``Recipe.settings()`` returns it, describes a full recipe. Any other
            mapping has changes (``Recipe.changed``) to the recipe that it names under ``base``, by
            default "default".
        context_shape: the shape of one context.
        encoder: a network that replaces the recipe's network: a registered name, settings, or a
            custom module.
        n_arms: the number of arms.
        source_only: keep only the source regret of a named recipe, also if it is the ``base`` of a
            mapping. A full recipe is used as it is.
        shift: the assumed difference between the domains, to which "default" and "small" are
            adjusted before changes are applied; by default ``get_default_shift(context_shape)``.
        transform: the transform before the encoder. It corrects for different units, so the recipe
            does not. If it standardises contexts, the network does not normalise its inputs again.
        catalogue: the arms with their features. The encoder then has fewer features if there would
            be too many products with arm features.
    """
    recipe = "default" if recipe is None else recipe
    shift = get_default_shift(context_shape) if shift is None else shift
    if transform is not None:
        shift = shift.without_units()
    if isinstance(recipe, Recipe):
        resolved_recipe = recipe
    elif isinstance(recipe, Mapping) and set(recipe) >= {group.name for group in fields(Recipe)}:
        resolved_recipe = parse_recipe(recipe)
    elif isinstance(recipe, str | Mapping):
        changes: dict[str, Any] = dict(recipe) if isinstance(recipe, Mapping) else {"base": recipe}
        base_name = str(changes.pop("base", "default"))
        base = recipe_for(base_name, context_shape=context_shape)
        base = base.source_only() if source_only else base
        if base_name in _SHIFT_DEPENDENT_RECIPES:
            base = _adjust_to_shift(base, shift, math.prod(context_shape), changes.get("weights"))
            if not shift.aligns_features and base.encoder.name == "mlp":
                is_standardised = isinstance(transform, Standardise)
                base = _adjust_without_alignment(
                    base, math.prod(context_shape), n_arms, not is_standardised
                )
        learning_changes = changes.get("learning")
        # given steps are not increased
        if isinstance(learning_changes, Mapping) and "steps" in learning_changes:
            changes["learning"] = {"min_run_steps": 0, **learning_changes}
        resolved_recipe = base.changed(changes)
    else:
        raise InvalidInput(f"recipe must be a name, a Recipe or a mapping, got {recipe!r}")
    try:
        # Convert to JSON types and back, so that a saved recipe is equal to the one in use.
        resolved_recipe = parse_recipe(json.loads(json.dumps(resolved_recipe.settings())))
    except TypeError as error:
        raise InvalidInput(
            f"recipe must contain only JSON types ({error}); pass a custom network as encoder="
        ) from None
    resolved_recipe = _replace_encoder(resolved_recipe, encoder)
    if catalogue is None:
        return resolved_recipe
    dimension = resolved_recipe.encoder.dense.dimension
    dimension = count_joint_components((dimension,), catalogue) or dimension
    return resolved_recipe.changed({"encoder": {"dense": {"dimension": dimension}}})


def _adjust_to_shift(
    recipe: Recipe, shift: Shift, n_inputs: int, changed_weights: object
) -> Recipe:
    """Return the recipe for the assumed shift between the domains.

    Target terms are kept if the style differs, or if ``changed_weights`` names them. If the
    frequencies of arms differ, they are estimated within a factor. Networks normalise each domain
    by its own statistics if style or units differ, and otherwise by the statistics of the sources.

    Args:
        recipe: the named recipe.
        shift: the assumed shift.
        n_inputs: the number of dimensions of a context.
        changed_weights: the user's changes of weights, a mapping by the names of terms, or None.
    """
    kept_terms = set(changed_weights) if isinstance(changed_weights, Mapping) else set()
    weights = {
        name: weight
        for name, weight in recipe.weights.items()
        if shift.aligns_features or name in SOURCE_REGRET_TERMS or name in kept_terms
    }
    options = dict(recipe.encoder.options)
    if not any(shift.mask_separate_columns(n_inputs)):
        options["statistics"] = "source"
    learning = recipe.learning
    if shift.has_label_shift and learning.max_frequency_ratio:
        learning = replace(learning, max_frequency_ratio=_MAX_FREQUENCY_RATIO)
    return replace(
        recipe, weights=weights, encoder=replace(recipe.encoder, options=options), learning=learning
    )


def _adjust_without_alignment(
    recipe: Recipe, n_inputs: int, n_arms: int, normalise_input: bool
) -> Recipe:
    """Return the recipe for vectors if nothing is aligned, with fewer steps and without batch norms
    after layers.
    """
    options = {
        **recipe.encoder.options,
        "normalise_input": normalise_input,
        "normalise_hidden": False,
    }
    min_run_steps = _MIN_RUN_STEPS if n_arms > 2 else _MIN_RUN_STEPS_WITH_TWO_ARMS
    learning = replace(
        recipe.learning,
        steps=min(recipe.learning.steps, _UNALIGNED_STEPS_PER_EPISODE),
        min_run_steps=min_run_steps if n_inputs <= _MAX_SMALL_DIMENSIONS else 0,
    )
    return replace(recipe, encoder=replace(recipe.encoder, options=options), learning=learning)


def _replace_encoder(recipe: Recipe, encoder: str | EncoderSettings | nn.Module | None) -> Recipe:
    """Return the recipe with another network, given by a registered name, settings, or a custom
    module.
    """
    if encoder is None:
        return recipe
    if isinstance(encoder, EncoderSettings):
        return replace(recipe, encoder=encoder)
    if isinstance(encoder, nn.Module):
        options: dict[str, Any] = {"module": type(encoder).__name__}
        return replace(recipe, encoder=replace(recipe.encoder, name=CUSTOM, options=options))
    if not isinstance(encoder, str):
        raise InvalidInput(
            f"encoder must be a name, EncoderSettings or a torch.nn.Module, got {encoder!r}"
        )
    options = recipe.encoder.options if encoder == recipe.encoder.name else {}
    return replace(recipe, encoder=replace(recipe.encoder, name=encoder, options=options))


def recipe_for(name: str, *, context_shape: tuple[int, ...]) -> Recipe:
    """Return the named recipe for contexts of this shape.

    There is one for images, and one for all other contexts.

    Args:
        name: "default", "default-rpd", "small" or "paper".
        context_shape: the shape of one context; (C, H, W) or (H, W, C) for images.

    >>> sorted(daband.recipe_for("default", context_shape=(8,)).weights)
    ['data_divergence', 'source_cross_entropy']
    """
    return recipes.get(name)(find_image_layout(context_shape) is not None)


@recipes.register("default")
def _build_default_recipe(is_image: bool) -> Recipe:
    """Return the recipe "default"."""
    return _build_default_image_recipe() if is_image else _build_default_vector_recipe()


@recipes.register("default-rpd")
def _build_default_rpd_recipe(is_image: bool) -> Recipe:
    """Return the recipe "default-rpd"."""
    default = _build_default_recipe(is_image)
    return default.with_weights(regression_error=0.5, predicted_reward=1.0)


@recipes.register("small")
def _build_small_recipe(is_image: bool) -> Recipe:
    """Return the recipe "small"."""
    return _build_small_image_recipe() if is_image else _build_small_vector_recipe()


def _build_default_image_recipe() -> Recipe:
    """Return the recipe "default" for images."""
    return Recipe(
        weights={
            "source_cross_entropy": Weight(1.0),
            "data_divergence": Weight(0.3, ramp=_RAMP_FRACTION),
            "target_diversity": Weight(0.3),
            "pseudo_labels": Weight(0.5, start=_RAMP_FRACTION),
        },
        encoder=EncoderSettings(name="conv"),
        learning=LearningSettings(
            augmentation=Augmentation(shift=2, contrast=0.4, affine=0.2),
            gate_exponent=8.0,
            max_frequency_ratio=1.0,
        ),
        explore="ucb",
    )


def _build_default_vector_recipe() -> Recipe:
    """Return the recipe "default" for vectors."""
    return Recipe(
        weights={
            "source_cross_entropy": Weight(1.0),
            "data_divergence": Weight(0.3, ramp=_RAMP_FRACTION / 2),
        },
        encoder=EncoderSettings(name="mlp"),
        learning=LearningSettings(steps=32, gate_exponent=1.0, run_steps=9_600),
    )


def _build_small_image_recipe() -> Recipe:
    """Return the recipe "small" for images."""
    default = _build_default_image_recipe()
    return replace(
        default.with_weights(
            data_divergence=Weight(1.0, ramp=_RAMP_FRACTION),
            pseudo_labels=Weight(0.5, start=0.4375),
        ),
        encoder=EncoderSettings(
            name="conv", options={"channels": (16, 24)}, dense=DenseSettings(hidden=64)
        ),
        learning=replace(
            default.learning,
            # There are too few steps to learn from distorted images.
            augmentation=replace(default.learning.augmentation, affine=0.0),
            learning_rate=2e-3,
            steps=16,
            batch=32,
            ema_decay=0.98,
            gate_exponent=4.0,
            run_steps=1_600,
        ),
    )


def _build_small_vector_recipe() -> Recipe:
    """Return the recipe "small" for vectors."""
    default = _build_default_vector_recipe()
    return replace(
        default,
        learning=replace(default.learning, steps=16, batch=32, ema_decay=0.98, run_steps=4_800),
    )
