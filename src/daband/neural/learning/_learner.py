"""The trained state of a neural policy: an encoder, its EMA, the objective's parameters, and the optimiser's state.

``stepper`` takes the steps, for one learner or for several that are stacked.
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

from daband._arrays import AnyArray, FloatArray, below
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder, build_encoder
from daband.neural.learning._flat_parameters import FlatParameters, fresh_moments
from daband.neural.learning._settings import CUSTOM, Recipe
from daband.neural.learning._skill_gate import SkillGate
from daband.neural.learning._torch_settings import single_precision, worth_threads
from daband.neural.objectives._objective import Objective
from daband.neural.objectives._term import TermShape

_Module = TypeVar("_Module", bound=nn.Module)
#: The factor of ``LearningSettings.scale`` for standardised rewards: the standard deviation of a reward that is 1 in
#: every fifth round and 0 otherwise.
_STANDARDISED_SCALE = 0.4


class Learner:
    """The state of one run.

    ``feature_shape`` is the shape of a context after the transform; with ``shared`` arms a round has one for each arm.
    ``module`` is the network if the recipe names a custom one. ``standardised`` rewards have mean 0 and standard
    deviation 1.
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
    ) -> None:
        self.recipe = recipe
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
                    f"the encoder is a custom module ({options.get('module')}), of which a recipe and a file hold only "
                    "the name and the weights; pass the module: encoder=..., or daband.load(path, encoder=...)"
                )
            encoder = build_encoder(
                network, context_shape=feature_shape, latent=settings.latent, domains=self.domains, **options
            )
            if settings.initialisation == "gaussian":
                _initialise_gaussian(encoder)
            shape = TermShape(
                n_arms=n_arms,
                alignment_width=encoder.alignment_width,
                feedback=feedback,
                scale=self.scale,
                standardised=standardised,
            )
            torch.manual_seed(seed + 1)  # the number of terms must not change the initial weights of another term
            objective = Objective(weights=recipe.weights, shape=shape)
        self.encoder: Encoder = encoder.to(device).train()
        self.objective = objective.to(device)
        self.layout = FlatParameters.of(self._modules())
        #: Every trainable parameter; the parameters of modules are views of it.
        self.vector = nn.Parameter(self.layout.pack(self._modules()))
        self.layout.install(self._modules(), self.vector)
        self.ema: Encoder | None = None
        self.ema_vector: torch.Tensor | None = None
        if recipe.learning.ema_decay > 0:
            self.ema = copy.deepcopy(self.encoder).requires_grad_(False).eval()
            only = self.layout.only("encoder")
            self.ema_vector = only.pack({"encoder": self.ema})
            only.install({"encoder": self.ema}, self.ema_vector)
        #: Buffers of a custom network that do not belong to a ``DomainNorm``, and those of its EMA copy, if any.
        self.own_buffers, self.ema_buffers = _other_buffers(self.encoder, self.ema)
        self.generator = torch.Generator(device).manual_seed(seed)
        #: Adam's state: the means of the gradient and of its square, and the number of steps.
        self.moments = fresh_moments(self.vector)
        heads = 1 if shared else n_arms
        dimension = self.encoder.dimension
        side = dimension if self.objective.needs_width else 0  # only P needs a matrix per arm
        #: Inputs of the losses from the head: coefficients, A^-1, alpha, and the centre and scale of rewards.
        self.constants = {
            "theta": torch.zeros(heads, dimension, device=device),
            "inverse": torch.zeros(heads, side, side, device=device),
            "alpha": torch.zeros((), device=device),
            "unit": torch.tensor([0.0, 1.0], device=device),
        }
        self.skill_gate = SkillGate(n_arms=n_arms, feedback=feedback)
        #: True if weights depend on the policy's skill.
        self.gated = bool(self.objective.gated) and recipe.learning.gate_exponent > 0
        #: The factor of the weights of gated terms.
        self.gate = 0.0
        self.step_number = 0
        #: The number of steps of the run; schedules are fractions of it.
        self.run_steps = recipe.learning.run_steps
        #: Skipped steps of this ``adapt``, the present streak of skipped steps, and the longest of this ``adapt``.
        self.faults = torch.zeros(3, device=device)
        rows = 2 * recipe.learning.batch * self.contexts_per_round
        #: True if steps on the CPU use more than one thread.
        self.worth_threads = worth_threads(self.encoder, context_shape=feature_shape, contexts=rows)
        #: True if steps on a GPU are recorded as a CUDA graph.
        self.cuda_graph = True
        #: The object that takes this learner's steps; ``_step_runners.py`` sets it.
        self.stepper: object | None = None

    def _modules(self) -> dict[str, nn.Module]:
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
    def alignment(self) -> str:
        """One line that describes the alignment between the domains, with its weights."""
        statistics = "no normalisation by domain"
        if self.norms:
            own = self.norms[0].statistics == "own"
            statistics = "own statistics of each domain" if own else "the source's statistics in every domain"
        terms = [name for name in self.objective.gated if name != "regression_error"]
        if not terms:
            return f"nothing is aligned: {statistics}"
        late = {name: math.ceil(self.objective.weights[name].full_at(self.run_steps)) for name in terms}
        waiting = [f"{name} at step {step:,}" for name, step in late.items() if step > self.step_number]
        begun = f"; not at full weight before {', '.join(waiting)}" if waiting else ""
        return f"aligned by {', '.join(terms)}, gate {self.gate:.2f}{begun}; {statistics}"

    def plan(self, steps: int) -> None:
        """Set the number of gradient steps of the run; schedules are fractions of it."""
        self.run_steps = max(1, steps)

    @property
    def stackable(self) -> bool:
        """True if learners of this shape can be stacked: all tensors are trained, or statistics of a norm."""
        trained = all(own.requires_grad for module in self._modules().values() for own in module.parameters())
        rest = [*self.own_buffers, *self.objective.buffers()]
        return self.encoder.features.stackable and trained and not rest

    @property
    def shape_key(self) -> str:
        """A key that is equal for learners that can be stacked."""
        recipe = self.recipe.settings()
        recipe["weights"] = sorted(self.objective.weights)
        sizes = [self.encoder.context_shape, self.n_arms, self.shared, self.domains.settings(), self.standardised]
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
        """Keep everything that steps change in these tensors, which have the same values."""
        self.vector.data = vector
        self.layout.install(self._modules(), self.vector)
        if self.ema is not None and ema_vector is not None:
            self.ema_vector = ema_vector
            self.layout.only("encoder").install({"encoder": self.ema}, ema_vector)
        self.moments, self.constants, self.faults = dict(moments), dict(constants), faults

    def schedule(self, steps: int) -> AnyArray:
        """Return, for the coming steps, the weight of each term and the EMA encoder's rate: (steps, terms + 1)."""
        numbers = np.arange(self.step_number, self.step_number + steps)
        weights = self.objective.weights_over(numbers.tolist(), run_steps=self.run_steps, gate=self.gate)
        # The EMA encoder follows faster at the start of training.
        kept = np.minimum((2 + numbers) / (11 + numbers), self.recipe.learning.ema_decay).astype(np.float32)
        self.step_number += steps
        return np.array([*weights, 1 - kept], np.float32).T

    def acting_copy(self) -> InferenceEncoder:
        """Return a copy of the encoder that acts: the EMA encoder if there is one. Frozen parameters are shared."""
        network = self.encoder if self.ema is None else self.ema
        if self.stackable:
            copied = _with_own_tensors(network)
        else:
            frozen = {name for name, parameter in self.encoder.named_parameters() if not parameter.requires_grad}
            shared = {id(parameter): parameter for name, parameter in network.named_parameters() if name in frozen}
            copied = copy.deepcopy(network, shared)
        return InferenceEncoder(copied, shared=self.shared, device=self.device)

    def take_head(
        self, theta: FloatArray, inverse: FloatArray, *, alpha: float, unit: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        """Copy the constants of the losses, and set the gate by the present skill.

        ``theta`` (heads, d) and ``inverse`` (heads, d, d) are the head's coefficients and A^-1, ``unit`` the centre and
        scale of rewards.
        """
        coefficients = torch.from_numpy(np.ascontiguousarray(theta)).to(torch.float32)
        if self.recipe.replay.unit_theta:
            coefficients = nn.functional.normalize(coefficients, dim=1)
        self.constants["theta"].copy_(coefficients, non_blocking=True)
        if self.objective.needs_width:
            self.constants["inverse"].copy_(torch.from_numpy(inverse), non_blocking=True)
        self.constants["alpha"].fill_(alpha)
        if self.standardised:
            self.constants["unit"].copy_(torch.tensor(unit), non_blocking=True)
        self.gate = self.skill_gate.skill(unit[1]) ** self.recipe.learning.gate_exponent

    def grow(self) -> None:
        """Add an arm."""
        self.n_arms += 1
        self.skill_gate.grow()
        self.stepper = None
        if not self.shared:
            for name in ("theta", "inverse"):
                before = self.constants[name]
                self.constants[name] = torch.cat([before, torch.zeros_like(before[:1])])

    def _parts(self) -> dict[str, nn.Module]:
        """Return the modules by their names in files."""
        return self._modules() if self.ema is None else {**self._modules(), "average": self.ema}

    def state(self) -> dict[str, AnyArray]:
        """Return everything needed to continue to the last bit."""
        arrays: dict[str, AnyArray] = {}
        for prefix, module in self._parts().items():
            for name, tensor in module.state_dict().items():
                arrays[f"{prefix}.{name}"] = tensor.detach().cpu().numpy()
        for name, tensor in self.moments.items():
            arrays[f"optimiser.{name}"] = tensor.cpu().numpy()
        arrays["generator"] = self.generator.get_state().numpy()
        arrays["step_number"] = np.array([self.step_number], np.int64)
        arrays["run_steps"] = np.array([self.run_steps], np.int64)
        arrays.update({f"gate.{name}": array for name, array in self.skill_gate.state().items()})
        arrays["streak"] = self.faults[1:2].cpu().numpy()
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the state."""

        def tensors(prefix: str) -> dict[str, torch.Tensor]:
            return {name: torch.from_numpy(np.array(array)) for name, array in below(prefix, state).items()}

        for prefix, module in self._parts().items():
            module.load_state_dict(tensors(f"{prefix}."))
        saved = tensors("optimiser.")
        for name, moments in self.moments.items():
            if saved[name].numel() != moments.numel():
                raise InvalidInput("the file holds another number of optimiser values than its network has")
            moments.copy_(saved[name].reshape(moments.shape))
        generator = torch.from_numpy(np.array(state["generator"]))
        if generator.shape == self.generator.get_state().shape:
            self.generator.set_state(generator)
        else:  # saved on another kind of device: use it as a seed
            self.generator.manual_seed(zlib.crc32(generator.numpy().tobytes()))
        self.step_number = int(state["step_number"][0])
        self.run_steps = int(state["run_steps"][0])
        self.skill_gate.restore(below("gate.", state))
        self.faults[1] = float(state["streak"][0])

    def __reduce__(self) -> tuple[Callable[..., Learner], tuple[Any, ...]]:
        """Rebuild copies and pickles from the state: views of common tensors do not survive copying."""
        arguments = {
            "recipe": self.recipe, "feature_shape": self.encoder.context_shape, "n_arms": self.n_arms,
            "shared": self.shared, "feedback": self.feedback, "seed": self.seed, "device": self.device,
            "standardised": self.standardised, "module": self._module, "domains": self.domains,
        }  # fmt: skip
        return _rebuilt, (arguments, self.state(), self.cuda_graph)


def _rebuilt(arguments: dict[str, Any], state: Mapping[str, AnyArray], cuda_graph: bool) -> Learner:
    learner = Learner(**arguments)
    learner.restore(state)
    learner.cuda_graph = cuda_graph
    return learner


def _with_own_tensors(module: _Module) -> _Module:
    """Copy a module with its parameters and buffers in half the time of ``copy.deepcopy``; all else is shared."""
    twin = copy.copy(module)
    twin._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().clone(), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    twin._buffers = {name: None if tensor is None else tensor.clone() for name, tensor in module._buffers.items()}
    twin._modules = {name: None if part is None else _with_own_tensors(part) for name, part in module._modules.items()}
    return twin


def _other_buffers(encoder: nn.Module, average: nn.Module | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return buffers that training may change and that belong to no ``DomainNorm``: the encoder's, and its EMA's.

    Buffers of norms that always use their running statistics are ignored: there may be hundreds.
    """
    own: list[torch.Tensor] = []
    slow: list[torch.Tensor] = []
    for module, other in zip(encoder.modules(), (average or encoder).modules(), strict=True):
        held = isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training
        if not isinstance(module, DomainNorm) and not held:
            own += module.buffers(recurse=False)
            slow += other.buffers(recurse=False)
    return own, slow if average is not None else []


def _initialise_gaussian(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(2 / inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
