"""Store the trained state of a neural policy: encoder, EMA encoder, parameters of the objective, optimiser state.

Steps are taken by a ``Stepper`` (``_step_runners.py``), for one learner or for several that are stacked.
"""

from __future__ import annotations

import copy
import json
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from daband._arrays import AnyArray, FloatArray, with_prefix
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder, build_encoder
from daband.neural.learning._flat_parameters import FlatParameters, initial_moments
from daband.neural.learning._settings import CUSTOM, Recipe
from daband.neural.learning._skill_gate import SkillGate
from daband.neural.learning._torch_settings import needs_threads, single_precision
from daband.neural.objectives._objective import Objective
from daband.neural.objectives._term import TermShape

_Module = TypeVar("_Module", bound=nn.Module)
#: The factor of ``LearningSettings.scale`` for standardised rewards: the standard deviation of a reward that is 1 in
#: every fifth round and 0 otherwise.
_STANDARDISED_SCALE = 0.4


class Learner:
    """The trained state of one neural policy.

    Args:
        recipe: the settings.
        feature_shape: the shape of a context after the transform.
        n_arms: the number of arms.
        shared: True if a round has one context per arm.
        feedback: one of ``FEEDBACKS``.
        seed: determines initial weights and batches.
        device: the device of all tensors.
        standardised: True if rewards have mean 0 and standard deviation 1.
        module: the network, if the recipe names a custom one.
        domains: the names of the domains.
        intercept: True if the head's regressions have an intercept, as those on arm features have.
    """

    @single_precision()
    def __init__(
        self,
        *,
        recipe: Recipe,
        feature_shape: tuple[int, ...],
        n_arms: int,
        shared: bool,
        feedback: str,
        seed: int,
        device: torch.device,
        standardised: bool = False,
        module: nn.Module | None = None,
        domains: DomainNames | None = None,
        intercept: bool = False,
    ) -> None:
        self.recipe = recipe
        self.intercept = intercept
        self._module = module
        self.domains = DomainNames() if domains is None else domains
        self.shared = shared
        self.n_arms = n_arms
        self.feedback = feedback
        self.standardised = standardised
        self.seed = seed
        self.device = device
        #: The factor between predicted rewards and logits.
        self.scale = recipe.learning.scale * (_STANDARDISED_SCALE if standardised else 1.0)
        # The initial weights depend on the seed only, and the process's random numbers do not change.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = recipe.encoder
            network, options = (settings.name, settings.options) if module is None else (module, {})
            if network == CUSTOM:
                raise InvalidInput(
                    f"encoder must be given: the recipe or file names a custom module ({options.get('module')}), but "
                    "does not contain it; pass the module: encoder=..., or daband.load(path, encoder=module)"
                )
            encoder = build_encoder(
                network, context_shape=feature_shape, dense=settings.dense, domains=self.domains, **options
            )
            if settings.initialisation == "gaussian":
                _initialise_gaussian(encoder)
            shape = TermShape(
                n_arms=n_arms,
                aligned_width=encoder.aligned_width,
                feedback=feedback,
                scale=self.scale,
                standardised=standardised,
            )
            torch.manual_seed(seed + 1)  # so that the encoder does not change the terms' initial weights
            objective = Objective(weights=recipe.weights, shape=shape)
        self.encoder: Encoder = encoder.to(device).train()
        self.objective = objective.to(device)
        self.layout = FlatParameters.from_modules(self._modules())
        #: Every trainable parameter; the parameters of modules are views of it.
        self.vector = nn.Parameter(self.layout.pack(self._modules()))
        self.layout.install(self._modules(), self.vector)
        self.ema: Encoder | None = None
        self.ema_vector: torch.Tensor | None = None
        if recipe.learning.ema_decay > 0:
            self.ema = copy.deepcopy(self.encoder).requires_grad_(False).eval()
            encoder_layout = self.layout.select("encoder")
            self.ema_vector = encoder_layout.pack({"encoder": self.ema})
            encoder_layout.install({"encoder": self.ema}, self.ema_vector)
        #: Buffers of a custom network that do not belong to a ``DomainNorm``, and those of its EMA copy, if any.
        self.own_buffers, self.ema_buffers = _other_buffers(self.encoder, self.ema)
        self.generator = torch.Generator(device).manual_seed(seed)
        #: Adam's state: the means of the gradient and of its square, and the number of steps.
        self.moments = initial_moments(self.vector)
        n_heads = 1 if shared else n_arms
        dimension = self.encoder.dimension + intercept
        inverse_size = dimension if self.objective.needs_bonus else 0  # only some terms need A^-1 of each arm
        #: Inputs of the losses without a gradient. The head sets its coefficients, A^-1, alpha, and the centre and
        #: scale of rewards. Steps update ``arm_frequencies``: moving averages of the predicted probabilities of arms
        #: in the source and in the target.
        self.constants = {
            "theta": torch.zeros(n_heads, dimension, device=device),
            "inverse": torch.zeros(n_heads, inverse_size, inverse_size, device=device),
            "alpha": torch.zeros((), device=device),
            "unit": torch.tensor([0.0, 1.0], device=device),
            "arm_frequencies": torch.full((2, n_arms), 1 / n_arms, device=device),
        }
        self.skill_gate = SkillGate(n_arms=n_arms, feedback=feedback)
        #: True if weights depend on the policy's skill.
        self.gated = bool(self.objective.gated_names) and recipe.learning.gate_exponent > 0
        #: The factor of the weights of gated terms.
        self.gate = 0.0
        self.step_number = 0
        #: The number of steps of the run; schedules are fractions of it.
        self.run_steps = recipe.learning.run_steps
        #: The number of skipped steps in this ``adapt``, the current streak of skipped steps, and the longest one (3,).
        self.faults = torch.zeros(3, device=device)
        n_contexts = 2 * recipe.learning.batch * self.contexts_per_round
        #: True if steps on the CPU use more than one thread.
        self.needs_threads = needs_threads(self.encoder, context_shape=feature_shape, contexts=n_contexts)
        #: True if steps on a GPU are recorded as a CUDA graph.
        self.cuda_graph = True
        #: The object that takes this learner's steps; ``_step_runners.py`` sets it.
        self.stepper: object | None = None

    def _modules(self) -> dict[str, nn.Module]:
        """Return the trained modules by name."""
        return {"encoder": self.encoder, "objective": self.objective}

    @property
    def norms(self) -> list[DomainNorm]:
        """The encoder's norms that have statistics for each domain."""
        return [module for module in self.encoder.modules() if isinstance(module, DomainNorm)]

    @property
    def contexts_per_round(self) -> int:
        """The number of contexts of a round: one, or one per arm."""
        return self.n_arms if self.shared else 1

    @property
    def uses_target(self) -> bool:
        """True if steps use unlabelled target contexts: for a term, or for the statistics of norms."""
        return self.objective.needs_target or any(norm.statistics == "own" for norm in self.norms)

    @property
    def alignment_summary(self) -> str:
        """One line that describes the alignment between the domains, with its weights."""
        statistics = "no normalisation by domain"
        if self.norms:
            by_domain = self.norms[0].statistics == "own"
            statistics = "own statistics of each domain" if by_domain else "the source's statistics in every domain"
        terms = [name for name in self.objective.gated_names if name != "regression_error"]
        if not terms:
            return f"nothing is aligned: {statistics}"
        full_steps = {name: math.ceil(self.objective.weights[name].full_step(self.run_steps)) for name in terms}
        waiting = [f"{name} at step {step:,}" for name, step in full_steps.items() if step > self.step_number]
        waiting_text = f"; not at full weight before {', '.join(waiting)}" if waiting else ""
        return f"aligned by {', '.join(terms)}, gate {self.gate:.2f}{waiting_text}; {statistics}"

    def plan(self, steps: int) -> None:
        """Set the number of gradient steps of the run; schedules are fractions of it."""
        self.run_steps = max(1, steps)

    @property
    def stackable(self) -> bool:
        """True if learners of this shape can be stacked: all tensors are trained, or are statistics of a norm."""
        trained = all(tensor.requires_grad for module in self._modules().values() for tensor in module.parameters())
        other_buffers = [*self.own_buffers, *self.objective.buffers()]
        return self.encoder.features.stackable and trained and not other_buffers

    @property
    def shape_key(self) -> str:
        """A key that is equal for learners that can be stacked."""
        recipe = self.recipe.settings()
        recipe["weights"] = sorted(self.objective.weights)
        sizes = [self.encoder.context_shape, self.n_arms, self.shared, self.domains.settings(), self.standardised]
        sizes.append(self.intercept)
        return json.dumps([recipe, *sizes, self.feedback, str(self.device)], default=str)

    def move_to(
        self,
        *,
        vector: torch.Tensor,
        ema_vector: torch.Tensor | None,
        moments: Mapping[str, torch.Tensor],
        constants: Mapping[str, torch.Tensor],
        faults: torch.Tensor,
    ) -> None:
        """Use these tensors for the state that steps change. They must already have the same values."""
        self.vector.data = vector
        self.layout.install(self._modules(), self.vector)
        if self.ema is not None and ema_vector is not None:
            self.ema_vector = ema_vector
            self.layout.select("encoder").install({"encoder": self.ema}, ema_vector)
        self.moments, self.constants, self.faults = dict(moments), dict(constants), faults

    def schedule(self, steps: int) -> AnyArray:
        """Return the weights of terms and the rate of the EMA for the coming steps, (steps, terms + 1)."""
        step_numbers = np.arange(self.step_number, self.step_number + steps)
        weights = self.objective.compute_weights(step_numbers.tolist(), run_steps=self.run_steps, gate=self.gate)
        # The EMA encoder follows faster at the start of training.
        decay = np.minimum((2 + step_numbers) / (11 + step_numbers), self.recipe.learning.ema_decay).astype(np.float32)
        self.step_number += steps
        return np.array([*weights, 1 - decay], np.float32).T

    def acting_copy(self) -> InferenceEncoder:
        """Return a copy of the encoder that decides: the EMA encoder if there is one. Frozen parameters are shared."""
        network = self.encoder if self.ema is None else self.ema
        if self.stackable:
            copied = _copy_tensors(network)
        else:
            frozen = {name for name, parameter in self.encoder.named_parameters() if not parameter.requires_grad}
            shared = {id(parameter): parameter for name, parameter in network.named_parameters() if name in frozen}
            copied = copy.deepcopy(network, shared)
        return InferenceEncoder(copied, shared=self.shared, device=self.device)

    def set_head(
        self, theta: FloatArray, inverse: FloatArray | None, *, alpha: float, unit: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        """Copy the head's coefficients, which are constants of the losses, and set the gate by the current skill.

        ``theta`` (heads, d) and ``inverse`` (heads, d, d) are the head's coefficients and A^-1, with one more feature,
        the constant 1, if there is an intercept. ``unit`` has the centre and the scale of rewards.
        """
        coefficients = torch.from_numpy(np.ascontiguousarray(theta)).to(torch.float32)
        if self.recipe.replay.unit_theta:
            coefficients = nn.functional.normalize(coefficients, dim=1)
        self.constants["theta"].copy_(coefficients, non_blocking=True)
        if self.objective.needs_bonus and inverse is not None:
            self.constants["inverse"].copy_(torch.from_numpy(inverse), non_blocking=True)
        self.constants["alpha"].fill_(alpha)
        if self.standardised:
            self.constants["unit"].copy_(torch.tensor(unit), non_blocking=True)
        self.gate = self.skill_gate.skill(unit[1]) ** self.recipe.learning.gate_exponent

    def grow(self) -> None:
        """Add one arm without rounds."""
        self.n_arms += 1
        self.skill_gate.grow()
        self.stepper = None
        if not self.shared:
            for name in ("theta", "inverse"):
                old = self.constants[name]
                self.constants[name] = torch.cat([old, torch.zeros_like(old[:1])])
        self.constants["arm_frequencies"] = nn.functional.pad(self.constants["arm_frequencies"], (0, 1))

    def _saved_modules(self) -> dict[str, nn.Module]:
        """Return the modules by their names in files."""
        return self._modules() if self.ema is None else {**self._modules(), "average": self.ema}

    def state(self) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit."""
        arrays: dict[str, AnyArray] = {}
        for prefix, module in self._saved_modules().items():
            for name, tensor in module.state_dict().items():
                arrays[f"{prefix}.{name}"] = tensor.detach().cpu().numpy()
        for name, tensor in self.moments.items():
            arrays[f"optimiser.{name}"] = tensor.cpu().numpy()
        arrays["generator"] = self.generator.get_state().numpy()
        arrays["step_number"] = np.array([self.step_number], np.int64)
        arrays["run_steps"] = np.array([self.run_steps], np.int64)
        arrays.update({f"gate.{name}": array for name, array in self.skill_gate.state().items()})
        arrays["streak"] = self.faults[1:2].cpu().numpy()
        arrays["arm_frequencies"] = self.constants["arm_frequencies"].cpu().numpy()
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore a state that ``state`` returned."""

        def tensors(prefix: str) -> dict[str, torch.Tensor]:
            return {name: torch.from_numpy(np.array(array)) for name, array in with_prefix(prefix, state).items()}

        for prefix, module in self._saved_modules().items():
            module.load_state_dict(tensors(f"{prefix}."))
        saved = tensors("optimiser.")
        for name, moments in self.moments.items():
            if saved[name].numel() != moments.numel():
                raise InvalidInput("the file must have as many optimiser values as its network has parameters")
            moments.copy_(saved[name].reshape(moments.shape))
        generator = torch.from_numpy(np.array(state["generator"]))
        if generator.shape == self.generator.get_state().shape:
            self.generator.set_state(generator)
        else:  # saved on another kind of device: use it as a seed
            self.generator.manual_seed(zlib.crc32(generator.numpy().tobytes()))
        self.step_number = int(state["step_number"][0])
        self.run_steps = int(state["run_steps"][0])
        self.skill_gate.restore(with_prefix("gate.", state))
        self.faults[1] = float(state["streak"][0])
        self.constants["arm_frequencies"].copy_(torch.from_numpy(np.array(state["arm_frequencies"])))

    def __reduce__(self) -> tuple[Callable[..., Learner], tuple[Any, ...]]:
        """Rebuild copies and pickles from the state: views of common tensors do not survive copying."""
        arguments = {
            "recipe": self.recipe, "feature_shape": self.encoder.context_shape, "n_arms": self.n_arms,
            "shared": self.shared, "feedback": self.feedback, "seed": self.seed, "device": self.device,
            "standardised": self.standardised, "module": self._module, "domains": self.domains,
            "intercept": self.intercept,
        }  # fmt: skip
        return _rebuild, (arguments, self.state(), self.cuda_graph)


def _rebuild(arguments: dict[str, Any], state: Mapping[str, AnyArray], cuda_graph: bool) -> Learner:
    """Return a learner with this state."""
    learner = Learner(**arguments)
    learner.restore(state)
    learner.cuda_graph = cuda_graph
    return learner


def _copy_tensors(module: _Module) -> _Module:
    """Return a copy of a module with its own parameters and buffers, in half the time of ``copy.deepcopy``."""
    copied = copy.copy(module)
    copied._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().clone(), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    copied._buffers = {name: None if tensor is None else tensor.clone() for name, tensor in module._buffers.items()}
    copied._modules = {name: None if part is None else _copy_tensors(part) for name, part in module._modules.items()}
    return copied


def _other_buffers(encoder: nn.Module, ema: nn.Module | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return buffers that training may change and that belong to no ``DomainNorm``, of the encoder and of its EMA.

    Buffers of norms that always use their running statistics are ignored: there may be hundreds.
    """
    buffers: list[torch.Tensor] = []
    ema_buffers: list[torch.Tensor] = []
    for module, ema_module in zip(encoder.modules(), (ema or encoder).modules(), strict=True):
        is_frozen_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training
        if not isinstance(module, DomainNorm) and not is_frozen_norm:
            buffers += module.buffers(recurse=False)
            ema_buffers += ema_module.buffers(recurse=False)
    return buffers, ema_buffers if ema is not None else []


def _initialise_gaussian(network: nn.Module) -> None:
    """Draw weights from a normal distribution with variance 2 / inputs, and set biases to 0."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(2 / inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
