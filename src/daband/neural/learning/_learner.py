"""What a neural policy learns by gradients: an encoder, its EMA, the objective's own parameters, the optimiser's state.

``stepper`` takes the steps, for one learner or for several that are stacked.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from daband._arrays import AnyArray, FloatArray, below
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder, build_encoder
from daband.neural.learning._flat_parameters import FlatParameters, FlatStatistics, fresh_moments
from daband.neural.learning._settings import CUSTOM, Recipe
from daband.neural.learning._skill_gate import SkillGate
from daband.neural.learning._torch_settings import single_precision, worth_threads
from daband.neural.objectives._objective import Objective
from daband.neural.objectives._term import TermShape

_Module = TypeVar("_Module", bound=nn.Module)


class Learner:
    """The state of one run.

    ``feature_shape`` is that of one context behind the transform; with ``shared`` arms a round has one for each arm.
    ``module`` is the network where the recipe says that it is a custom one.
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
        module: nn.Module | None = None,
        domains: DomainNames | None = None,
    ) -> None:
        self.recipe = recipe
        self._module = module
        self.domains = DomainNames() if domains is None else domains
        self.shared = shared
        self.n_arms = n_arms
        self.feedback = feedback
        self.seed = seed
        self.device = device
        # The initial weights depend on the seed alone, and nobody else's random numbers change.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = recipe.encoder
            network, options = (settings.name, settings.options) if module is None else (module, {})
            if network == CUSTOM:
                raise InvalidInput(
                    f"the encoder is a custom module ({options.get('module')}), of which a recipe and a file hold the "
                    "name and the weights alone; pass the module: encoder=..., or daband.load(path, encoder=...)"
                )
            encoder = build_encoder(
                network, context_shape=feature_shape, latent=settings.latent, domains=self.domains, **options
            )
            if settings.initialisation == "gaussian":
                _initialise_gaussian(encoder)
            shape = TermShape(
                n_arms=n_arms, alignment_width=encoder.alignment_width, feedback=feedback, scale=recipe.learning.scale
            )
            torch.manual_seed(seed + 1)  # a term more or less must not change another's start
            objective = Objective(weights=recipe.weights, shape=shape)
        self.encoder: Encoder = encoder.to(device).train()
        self.objective = objective.to(device)
        self.layout = FlatParameters.of(self._modules())
        self.vector = nn.Parameter(self.layout.pack(self._modules()))
        """Every trainable parameter; the modules' own are parts of it."""
        self.layout.install(self._modules(), self.vector)
        self.ema: Encoder | None = None
        self.ema_vector: torch.Tensor | None = None
        if recipe.learning.ema_decay > 0:
            self.ema = copy.deepcopy(self.encoder).requires_grad_(False).eval()
            alone = self.layout.only("encoder")
            self.ema_vector = alone.pack({"encoder": self.ema})
            alone.install({"encoder": self.ema}, self.ema_vector)
        self.ema_statistics: tuple[FlatStatistics, torch.Tensor, int] | None = None
        """Where a stack keeps the statistics of the EMA encoder: their layout, the numbers of all runs, its own run."""
        self.own_buffers, self.ema_buffers = _buffers_besides_norms(self.encoder, self.ema)
        """Buffers of a custom network that are no norm's, and those of its EMA copy, if it has one."""
        self.generator = torch.Generator(device).manual_seed(seed)
        self.moments = fresh_moments(self.vector)
        """What Adam knows: the means of the gradient and of its square, and the steps taken."""
        heads = 1 if shared else n_arms
        dimension = self.encoder.dimension
        # Only P asks for widths; without it a matrix per arm would be copied for nothing.
        side = dimension if self.objective.needs_width else 0
        self.constants = {
            "theta": torch.zeros(heads, dimension, device=device),
            "inverse": torch.zeros(heads, side, side, device=device),
            "alpha": torch.zeros((), device=device),
            "prior": torch.full((n_arms,), 1.0 / n_arms, device=device),
        }
        """What losses take from the head: coefficients, A^-1, how much of the width P adds, the arms' frequencies."""
        self.skill_gate = SkillGate(n_arms=n_arms, feedback=feedback)
        has_gate = bool(self.objective.gated) or any(norm.statistics == "gated" for norm in self.norms)
        self.gated = has_gate and recipe.learning.gate_exponent > 0
        """Whether weights depend on the policy's skill, so that it must be kept up."""
        self.gate = 0.0
        """What the weights of gated terms are multiplied with."""
        self.step_number = 0
        self.run_steps = recipe.learning.run_steps
        """How many steps the run has, of which schedules are shares."""
        self.faults = torch.zeros(3, device=device)
        """Steps skipped in this ``adapt``, the present streak of skipped ones, and the longest of this ``adapt``."""
        rows = 2 * recipe.learning.batch * self.contexts_per_round
        self.worth_threads = worth_threads(self.encoder, context_shape=feature_shape, contexts=rows)
        """Whether steps on the CPU use more than one thread."""
        self.cuda_graph = True
        """Whether steps on a GPU are recorded as a CUDA graph; else they run eagerly."""
        self.stepper: object | None = None
        """Whoever takes this learner's steps; ``learning.step_runners`` sets it."""

    def _modules(self) -> dict[str, nn.Module]:
        return {"encoder": self.encoder, "objective": self.objective}

    @property
    def norms(self) -> list[DomainNorm]:
        """The encoder's norms that have statistics for each domain."""
        return [module for module in self.encoder.modules() if isinstance(module, DomainNorm)]

    # What a stack of learners asks for.

    @property
    def contexts_per_round(self) -> int:
        """How many contexts a round has: one, or one per arm."""
        return self.n_arms if self.shared else 1

    @property
    def uses_target(self) -> bool:
        """Whether steps look at unlabelled target contexts: for a term, or for the statistics of norms."""
        own = any(norm.statistics != "source" or norm.by_channel for norm in self.norms)
        return self.objective.needs_target or (self.recipe.learning.target_statistics and own)

    @property
    def stores_target(self) -> bool:
        """Whether unlabelled target contexts are kept: for steps, or to estimate how often arms are best there."""
        return self.uses_target or self.recipe.learning.prior == "estimated"

    @property
    def encodes_ahead(self) -> bool:
        """Whether contexts that are known beforehand are encoded right after steps: on a GPU, by the EMA encoder."""
        return self.device.type == "cuda" and self.ema is not None and not self.shared

    @property
    def alignment(self) -> str:
        """What is aligned between the domains, and by how much, in one line."""
        norms = self.norms
        columns = sum(int(norm.own.sum()) for norm in norms)
        if not norms:
            statistics = "no normalisation by domain"
        elif columns:
            statistics = f"own statistics of each domain for {columns} columns, the source's for the rest"
        elif norms[0].statistics == "source":
            statistics = "the source's statistics in every domain"
        else:
            statistics = "own statistics of each domain"
        terms = [name for name in self.objective.gated if name != "regression_error"]
        if not terms:
            return f"nothing is aligned: {statistics}"
        exponent = self.recipe.learning.gate_exponent
        gate = f"gate {self.gate:.2f}" + (f" (skill {self.skill_gate.skill:.2f} ** {exponent:g})" if exponent else "")
        late = {name: self.objective.weights[name].full_at(self.run_steps) for name in terms}
        waiting = [f"{name} at step {math.ceil(step):,}" for name, step in late.items() if step > self.step_number]
        begun = f"; not at full weight before {', '.join(waiting)}" if waiting else ""
        return f"aligned by {', '.join(terms)}, {gate}{begun}; {statistics}"

    def plan(self, steps: int) -> None:
        """Say how many gradient steps the run has in all: schedules are shares of that."""
        self.run_steps = max(1, steps)

    @property
    def stackable(self) -> bool:
        """Whether learners of this shape can be stacked: if all that the encoder holds is trained, or a norm's."""
        frozen = any(not parameter.requires_grad for parameter in self.encoder.parameters())
        return self.encoder.features.stackable and not frozen and not self.own_buffers

    @property
    def shape_key(self) -> str:
        """The same for learners that can be stacked."""
        recipe = self.recipe.settings()
        recipe["weights"] = sorted(self.objective.weights)
        sizes = [self.encoder.context_shape, self.n_arms, self.shared, self.domains.settings()]
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
        """Keep everything that steps change in these tensors, which hold the same values already."""
        self.vector.data = vector
        self.layout.install(self._modules(), self.vector)
        if self.ema is not None and ema_vector is not None:
            self.ema_vector = ema_vector
            self.layout.only("encoder").install({"encoder": self.ema}, ema_vector)
        self.moments, self.constants, self.faults = dict(moments), dict(constants), faults

    def schedule(self, steps: int) -> AnyArray:
        """For each of the coming steps every term's weight, and how far the EMA encoder follows: (steps, terms + 1)."""
        coming = range(self.step_number, self.step_number + steps)
        weights = self.objective.weights_over(coming, run_steps=self.run_steps, gate=self.gate)
        # The EMA encoder follows faster while training is young.
        numbers = np.arange(self.step_number, self.step_number + steps)
        kept = np.minimum((2 + numbers) / (11 + numbers), self.recipe.learning.ema_decay).astype(np.float32)
        self.step_number += steps
        return np.array([*weights, 1 - kept], np.float32).T

    def acting_copy(self) -> InferenceEncoder:
        """A copy of the encoder whose features the head is built on: the EMA encoder where there is one."""
        network = self.encoder if self.ema is None else self.ema
        frozen = {name for name, parameter in self.encoder.named_parameters() if not parameter.requires_grad}
        shared = {id(parameter): parameter for name, parameter in network.named_parameters() if name in frozen}
        if self.encodes_ahead and self.ema_statistics is not None and self.ema_vector is not None and self.stackable:
            # Most contexts are encoded ahead, and nobody asks for the copy: its numbers are enough, in two pieces.
            statistics, vector, run = self.ema_statistics
            copies = self.ema_vector.clone(), statistics, vector.clone(), run
            make = partial(_with_values, network, self.layout, *copies)
            return InferenceEncoder(make, shared=self.shared, device=self.device)
        # Copying everything that a module of somebody else may hold takes ten times as long.
        copied = _with_own_tensors(network) if self.stackable else copy.deepcopy(network, shared)
        return InferenceEncoder(copied, shared=self.shared, device=self.device)

    def take_head(
        self, theta: FloatArray, inverse: FloatArray, *, alpha: float, prior: FloatArray | None = None
    ) -> None:
        """Copy what the losses treat as constants, coefficients, A^-1 and alpha, and set the gate by the skill so far.

        ``prior`` (K,) is how often each arm is expected to be the best one in the target; None: all as often.
        """
        coefficients = torch.from_numpy(theta).to(torch.float32)
        if self.recipe.replay.unit_theta:
            coefficients = nn.functional.normalize(coefficients, dim=1)
        self.constants["theta"].copy_(coefficients, non_blocking=True)
        if self.objective.needs_width:
            self.constants["inverse"].copy_(torch.from_numpy(inverse), non_blocking=True)
        self.constants["alpha"].fill_(alpha)
        if prior is None:
            self.constants["prior"].fill_(1.0 / self.n_arms)
        else:
            self.constants["prior"].copy_(torch.from_numpy(prior), non_blocking=True)
        self.gate = self.skill_gate.skill**self.recipe.learning.gate_exponent
        for norm in self.norms:
            if norm.statistics == "gated":
                norm.gate.fill_(self.gate)

    @single_precision()
    def grow(self) -> None:
        """One more arm."""
        with torch.random.fork_rng(devices=[]):
            # The initial values for a new arm depend on the seed and the arm's number alone.
            torch.manual_seed(int(np.random.SeedSequence([self.seed, self.n_arms]).generate_state(1)[0]))
            self.objective.grow()
        self.objective.to(self.device)
        self.n_arms += 1
        self.skill_gate.grow()
        self.stepper = None
        layout = FlatParameters.of(self._modules())
        if layout.places != self.layout.places:
            self._lay_out(layout)
        self.constants["prior"] = torch.full((self.n_arms,), 1.0 / self.n_arms, device=self.device)
        if not self.shared:
            for name in ("theta", "inverse"):
                before = self.constants[name]
                self.constants[name] = torch.cat([before, torch.zeros_like(before[:1])])

    def _lay_out(self, layout: FlatParameters) -> None:
        """Make room for parameters that have grown; Adam's moments of the others, and of the old part, are kept."""
        self.vector = nn.Parameter(layout.pack(self._modules()))
        layout.install(self._modules(), self.vector)
        moments = fresh_moments(self.vector)
        moments["step"] += self.moments["step"][0]
        for name in ("exp_avg", "exp_avg_sq"):
            fresh = moments[name]
            new, old = layout.parameters(fresh[None]), self.layout.parameters(self.moments[name][None])
            for part, own in new.items():
                for parameter in own.keys() & old.get(part, {}).keys():
                    before, after = old[part][parameter], own[parameter]
                    common = tuple(slice(min(sizes)) for sizes in zip(before.shape, after.shape, strict=True))
                    after[common] = before[common]
        self.moments = moments
        self.layout = layout

    def state(self) -> dict[str, AnyArray]:
        """Everything needed to continue to the last bit."""
        arrays: dict[str, AnyArray] = {}
        parts: dict[str, nn.Module] = {"encoder": self.encoder, "objective": self.objective}
        if self.ema is not None:
            parts["average"] = self.ema
        for prefix, module in parts.items():
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
        """Restore what ``state`` returned."""

        def tensors(prefix: str) -> dict[str, torch.Tensor]:
            return {name: torch.from_numpy(np.array(array)) for name, array in below(prefix, state).items()}

        self.encoder.load_state_dict(tensors("encoder."))
        self.objective.load_state_dict(tensors("objective."))
        if self.ema is not None:
            self.ema.load_state_dict(tensors("average."))
        saved = tensors("optimiser.")
        for name, moments in self.moments.items():
            if saved[name].numel() != moments.numel():
                raise InvalidInput(
                    "the file holds another number of optimiser values than its network has: another version of daband "
                    "wrote it, and training cannot go on from it here"
                )
            moments.copy_(saved[name].reshape(moments.shape))
        self._restore_generator(torch.from_numpy(np.array(state["generator"])))
        self.step_number = int(state["step_number"][0])
        if "run_steps" in state:
            self.run_steps = int(state["run_steps"][0])
        if "gate.sums" in state:
            self.skill_gate.restore(below("gate.", state))
        self.faults[1] = float(state["streak"][0])

    def _restore_generator(self, state: torch.Tensor) -> None:
        """Continue these random numbers; a state of another kind of device cannot be, and seeds new ones."""
        if state.shape == self.generator.get_state().shape:
            self.generator.set_state(state)
        else:
            digest = hashlib.sha256(state.numpy().tobytes()).digest()
            self.generator.manual_seed(int.from_bytes(digest[:7], "little"))

    def __reduce__(self) -> tuple[Callable[..., Learner], tuple[Any, ...]]:
        """Copies and pickles are rebuilt from the state: the views into shared tensors would not survive copying."""
        arguments = {
            "recipe": self.recipe, "feature_shape": self.encoder.context_shape, "n_arms": self.n_arms,
            "shared": self.shared, "feedback": self.feedback, "seed": self.seed, "device": self.device,
            "module": self._module, "domains": self.domains,
        }  # fmt: skip
        return _rebuilt, (arguments, self.state(), self.cuda_graph)


def _rebuilt(arguments: dict[str, Any], state: Mapping[str, AnyArray], cuda_graph: bool) -> Learner:
    learner = Learner(**arguments)
    learner.restore(state)
    learner.cuda_graph = cuda_graph
    return learner


def _buffers_besides_norms(
    encoder: nn.Module, average: nn.Module | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Buffers that training may change and that are no ``DomainNorm``'s: the encoder's, and its average's if any.

    Those of norms that are held to the statistics they came with are left out: there may be hundreds.
    """
    own: list[torch.Tensor] = []
    slow: list[torch.Tensor] = []
    beside = encoder if average is None else average
    for module, other in zip(encoder.modules(), beside.modules(), strict=True):
        held = isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training
        if not isinstance(module, DomainNorm) and not held:
            own += module.buffers(recurse=False)
            slow += other.buffers(recurse=False)
    return own, slow if average is not None else []


def _with_own_tensors(module: _Module, values: Mapping[str, torch.Tensor] | None = None, prefix: str = "") -> _Module:
    """A copy of a module with parameters and buffers of its own; all else that it holds must never change.

    They are those of ``values``, by name, where it has them.
    """

    def own(name: str, tensor: torch.Tensor) -> torch.Tensor:
        value = None if values is None else values.get(prefix + name)
        return tensor.detach().clone() if value is None else value

    twin = copy.copy(module)
    twin._parameters = {
        name: None if tensor is None else nn.Parameter(own(name, tensor), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    twin._buffers = {name: None if tensor is None else own(name, tensor) for name, tensor in module._buffers.items()}
    twin._modules = {
        name: None if part is None else _with_own_tensors(part, values, f"{prefix}{name}.")
        for name, part in module._modules.items()
    }
    return twin


def _with_values(
    network: Encoder,
    layout: FlatParameters,
    vector: torch.Tensor,
    statistics: FlatStatistics,
    buffers: torch.Tensor,
    run: int,
) -> Encoder:
    """A copy of a run's encoder whose parameters and norms' buffers are parts of these vectors."""
    parameters = layout.only("encoder").parameters(vector[None])["encoder"]
    values = {**{name: own[0] for name, own in parameters.items()}, **statistics.of_run(buffers, run)}
    return _with_own_tensors(network, values)


def _initialise_gaussian(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(2 / inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
