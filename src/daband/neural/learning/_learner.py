"""Store the trained state of a neural policy: encoder, EMA encoder, parameters of the objective,
optimiser state.

The EMA encoder is an exponential moving average of the encoder over gradient steps. A
``StackTrainer`` (``_stack_trainer.py``) takes the steps, for one learner or for several stacked
learners.
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
from torch import Tensor, nn

from daband._arguments import check_int
from daband._arrays import AnyArray, FloatArray, drop_prefix
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder, build_encoder
from daband.neural.learning._flat_parameters import FlatParameters, make_initial_moments
from daband.neural.learning._settings import CUSTOM, Recipe
from daband.neural.learning._skill_gate import SkillGate
from daband.neural.learning._torch_settings import needs_threads, use_single_precision
from daband.neural.objectives._objective import Objective
from daband.neural.objectives._term import TermSettings

_Module = TypeVar("_Module", bound=nn.Module)
#: ``LearningSettings.scale`` is multiplied by this factor if rewards are standardised. It is the
#: standard deviation of a reward that is 1 in every fifth round and 0 otherwise.
_STANDARDISED_SCALE_FACTOR = 0.4


class Learner:
    """The trained state of one neural policy.

    In shapes, d is the number of coefficients of a regression: the encoder's features, plus 1 with
    an intercept.

    Args:
        recipe: the settings.
        feature_shape: the shape of a context after the transform.
        n_arms: the number of arms.
        has_shared_arms: True if a round has one context per arm.
        feedback: "one_hot" if exactly one arm has reward 1 in each round and others 0, else
            "bandit".
        seed: determines initial weights and batches.
        device: the device of all tensors.
        standardise_rewards: True if rewards are standardised to mean 0 and standard deviation 1.
        module: a custom network; None if the recipe names a registered one.
        domains: the names of the domains.
        has_intercept: True if the head's regressions have an intercept, as regressions on arm
            features do.
    """

    @use_single_precision()
    def __init__(
        self,
        *,
        recipe: Recipe,
        feature_shape: tuple[int, ...],
        n_arms: int,
        has_shared_arms: bool,
        feedback: str,
        seed: int,
        device: torch.device,
        standardise_rewards: bool = False,
        module: nn.Module | None = None,
        domains: DomainNames | None = None,
        has_intercept: bool = False,
    ) -> None:
        self.recipe = recipe
        self.has_intercept = has_intercept
        self._module = module
        self.domains = DomainNames() if domains is None else domains
        self.has_shared_arms = has_shared_arms
        self.n_arms = n_arms
        self.feedback = feedback
        self.standardise_rewards = standardise_rewards
        self.seed = seed
        self.device = device
        #: Logits are predicted rewards times ``scale``.
        self.scale = recipe.learning.scale * (
            _STANDARDISED_SCALE_FACTOR if standardise_rewards else 1.0
        )
        # The initial weights depend on the seed only, and torch's global random state does not
        # change.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder_settings = recipe.encoder
            network, options = (
                (module, {})
                if module is not None
                else (encoder_settings.name, encoder_settings.options)
            )
            if network == CUSTOM:
                raise InvalidInput(
                    "encoder must be given: the recipe or file names a custom module"
                    f" ({options.get('module')}), but does not contain it; pass the module:"
                    " encoder=..., or daband.load(path, encoder=module)"
                )
            encoder = build_encoder(
                network,
                context_shape=feature_shape,
                dense=encoder_settings.dense,
                domains=self.domains,
                **options,
            )
            if encoder_settings.initialisation == "gaussian":
                _initialise_gaussian(encoder)
            term_settings = TermSettings(
                n_arms, encoder.n_aligned_features, feedback, self.scale, standardise_rewards
            )
            # so that the encoder does not change the terms' initial weights
            torch.manual_seed(seed + 1)
            objective = Objective(weights=recipe.weights, settings=term_settings)
        self.encoder: Encoder = encoder.to(device).train()
        self.objective = objective.to(device)
        self.layout = FlatParameters.from_modules(self._get_trained_modules())
        #: All trainable parameters in one vector; the parameters of the modules are views of it.
        self.parameter_vector = nn.Parameter(self.layout.pack(self._get_trained_modules()))
        self.layout.make_views(self._get_trained_modules(), self.parameter_vector)
        #: The EMA encoder, which decides; None if the recipe has no EMA.
        self.ema_encoder: Encoder | None = None
        #: The parameters of the EMA encoder in one vector.
        self.ema_vector: Tensor | None = None
        if recipe.learning.ema_decay > 0:
            self.ema_encoder = copy.deepcopy(self.encoder).requires_grad_(False).eval()
            encoder_layout = self.layout.select("encoder")
            self.ema_vector = encoder_layout.pack({"encoder": self.ema_encoder})
            encoder_layout.make_views({"encoder": self.ema_encoder}, self.ema_vector)
        #: The buffers of a custom network that do not belong to a ``DomainNorm``, and the same
        #: buffers of its EMA.
        self.other_buffers, self.ema_other_buffers = _find_other_buffers(
            self.encoder, self.ema_encoder
        )
        self.generator = torch.Generator(device).manual_seed(seed)
        #: The state of Adam: the running means of the gradient and of its square, and the number of
        #: steps.
        self.moments = make_initial_moments(self.parameter_vector)
        n_heads = 1 if has_shared_arms else n_arms
        n_coefficients = self.encoder.dimension + has_intercept
        # most terms do not need the inverses
        inverse_size = n_coefficients if self.objective.needs_bonus else 0
        #: Inputs of the losses that have no gradient, by their names in ``RunInputs``. ``set_head``
        #: sets all of them except "arm_frequencies", which gradient steps update.
        self.loss_inputs = {
            "theta": torch.zeros(n_heads, n_coefficients, device=device),
            "inverses": torch.zeros(n_heads, inverse_size, inverse_size, device=device),
            "alpha": torch.zeros((), device=device),
            "reward_unit": torch.tensor([0.0, 1.0], device=device),
            "arm_frequencies": torch.full((2, n_arms), 1 / n_arms, device=device),
        }
        self.skill_gate = SkillGate(n_arms=n_arms, feedback=feedback)
        #: True if the weights of some terms depend on the policy's skill.
        self.uses_gate = bool(self.objective.gated_term_names) and recipe.learning.gate_exponent > 0
        #: The factor of the weights of gated terms, in [0, 1].
        self.gate_factor = 0.0
        #: The number of gradient steps so far.
        self.step_number = 0
        #: The number of steps of the run; schedules are fractions of it.
        self.run_steps = recipe.learning.run_steps
        #: (3,): the number of skipped steps in this call of ``adapt``, the length of the current
        #: streak of skipped steps, and the length of the longest streak.
        self.skip_counts = torch.zeros(3, device=device)
        n_contexts = 2 * recipe.learning.batch * self.contexts_per_round
        #: True if steps on the CPU use more than one thread.
        self.needs_threads = needs_threads(
            self.encoder, context_shape=feature_shape, n_contexts=n_contexts
        )
        #: True if steps on a GPU are recorded as a CUDA graph.
        self.uses_cuda_graph = True
        #: The object that takes this learner's steps; ``_stack_trainer.py`` sets it.
        self.trainer: object | None = None

    def _get_trained_modules(self) -> dict[str, nn.Module]:
        """Return the trained modules by name."""
        return {"encoder": self.encoder, "objective": self.objective}

    @property
    def norms(self) -> list[DomainNorm]:
        """The encoder's norms that have statistics for each domain."""
        return [module for module in self.encoder.modules() if isinstance(module, DomainNorm)]

    @property
    def contexts_per_round(self) -> int:
        """The number of contexts of a round: one, or one per arm."""
        return self.n_arms if self.has_shared_arms else 1

    @property
    def uses_target(self) -> bool:
        """True if steps use unlabelled target contexts: for a term, or for the statistics
        of norms.
        """
        return self.objective.needs_target or any(norm.statistics == "own" for norm in self.norms)

    def set_run_steps(self, n_steps: int) -> None:
        """Set the number of gradient steps of the run; schedules are fractions of it."""
        self.run_steps = max(1, n_steps)

    @property
    def is_stackable(self) -> bool:
        """True if learners of this shape can be stacked: all tensors are trained, or are statistics
        of a norm.
        """
        modules = self._get_trained_modules().values()
        is_trained = all(
            parameter.requires_grad for module in modules for parameter in module.parameters()
        )
        other_buffers = [*self.other_buffers, *self.objective.buffers()]
        return self.encoder.features.is_stackable and is_trained and not other_buffers

    @property
    def shape_key(self) -> str:
        """A key that is equal for learners that can be stacked."""
        recipe = self.recipe.settings()
        recipe["weights"] = sorted(self.objective.weights)
        sizes = [self.encoder.context_shape, self.n_arms, self.domains.settings()]
        flags = [self.has_shared_arms, self.standardise_rewards, self.has_intercept]
        return json.dumps([recipe, sizes, flags, self.feedback, str(self.device)], default=str)

    def use_tensors(
        self,
        *,
        parameter_vector: Tensor,
        ema_vector: Tensor | None,
        moments: Mapping[str, Tensor],
        loss_inputs: Mapping[str, Tensor],
        skip_counts: Tensor,
    ) -> None:
        """Replace the tensors that steps change by these, e.g. by views of a stack.

        The values must be the same.
        """
        self.parameter_vector.data = parameter_vector
        self.layout.make_views(self._get_trained_modules(), self.parameter_vector)
        if self.ema_encoder is not None and ema_vector is not None:
            self.ema_vector = ema_vector
            self.layout.select("encoder").make_views({"encoder": self.ema_encoder}, ema_vector)
        self.moments = dict(moments)
        self.loss_inputs = dict(loss_inputs)
        self.skip_counts = skip_counts

    def advance_schedule(self, n_steps: int) -> AnyArray:
        """Return the weights of all terms and the rate of the EMA for the next ``n_steps`` steps,
        (steps, terms + 1).

        These steps count as taken: ``step_number`` increases by ``n_steps``.
        """
        step_numbers = np.arange(self.step_number, self.step_number + n_steps)
        weights = self.objective.compute_weights(
            step_numbers.tolist(), run_steps=self.run_steps, gate=self.gate_factor
        )
        # The EMA encoder follows faster at the start of training.
        decays = np.minimum(
            (2 + step_numbers) / (11 + step_numbers), self.recipe.learning.ema_decay
        ).astype(np.float32)
        self.step_number += n_steps
        return np.array([*weights, 1 - decays], np.float32).T

    def copy_acting_encoder(self) -> InferenceEncoder:
        """Return a copy of the encoder that decides: of the EMA encoder if there is one, else of
        the encoder.

        Parameters that are not trained are shared with the copy.
        """
        network = self.encoder if self.ema_encoder is None else self.ema_encoder
        if self.is_stackable:
            network_copy = _copy_module(network)
        else:
            frozen_names = {
                name
                for name, parameter in self.encoder.named_parameters()
                if not parameter.requires_grad
            }
            memo = {
                id(parameter): parameter
                for name, parameter in network.named_parameters()
                if name in frozen_names
            }
            network_copy = copy.deepcopy(network, memo)
        return InferenceEncoder(
            network_copy, has_shared_arms=self.has_shared_arms, device=self.device
        )

    def set_head(
        self,
        theta: FloatArray,
        inverses: FloatArray | None,
        *,
        alpha: float,
        mean: float = 0.0,
        deviation: float = 1.0,
    ) -> None:
        """Copy the state of the regression head into ``loss_inputs``, and set the gate by the
        current skill.

        Args:
            theta: (heads, d), the coefficients of each regression. There is one per arm, or one for
                shared arms.
            inverses: (heads, d, d), the inverse of each regression's matrix A; None if no term
                needs bonuses.
            alpha: the factor of the confidence bonus.
            mean: the mean of rewards; 0 if they are not standardised.
            deviation: the standard deviation of rewards; 1 if they are not standardised.
        """
        coefficients = torch.from_numpy(np.ascontiguousarray(theta)).to(torch.float32)
        if self.recipe.replay.unit_theta:
            coefficients = nn.functional.normalize(coefficients, dim=1)
        self.loss_inputs["theta"].copy_(coefficients, non_blocking=True)
        if self.objective.needs_bonus and inverses is not None:
            self.loss_inputs["inverses"].copy_(torch.from_numpy(inverses), non_blocking=True)
        self.loss_inputs["alpha"].fill_(alpha)
        if self.standardise_rewards:
            self.loss_inputs["reward_unit"].copy_(
                torch.tensor([mean, deviation]), non_blocking=True
            )
        self.gate_factor = (
            self.skill_gate.compute_skill(deviation) ** self.recipe.learning.gate_exponent
        )

    def add_arm(self) -> None:
        """Add one arm without rounds."""
        self.n_arms += 1
        self.skill_gate.add_arm()
        self.trainer = None
        if not self.has_shared_arms:
            for name in ("theta", "inverses"):
                heads = self.loss_inputs[name]
                self.loss_inputs[name] = torch.cat([heads, torch.zeros_like(heads[:1])])
        self.loss_inputs["arm_frequencies"] = nn.functional.pad(
            self.loss_inputs["arm_frequencies"], (0, 1)
        )

    def _get_saved_modules(self) -> dict[str, nn.Module]:
        """Return all modules with saved tensors, by their names in files."""
        modules = self._get_trained_modules()
        return modules if self.ema_encoder is None else {**modules, "average": self.ema_encoder}

    def state(self) -> dict[str, AnyArray]:
        """Return all arrays that are needed to continue training with the same results, bit for
        bit.
        """
        arrays: dict[str, AnyArray] = {}
        for prefix, module in self._get_saved_modules().items():
            for name, tensor in module.state_dict().items():
                arrays[f"{prefix}.{name}"] = tensor.detach().cpu().numpy()
        for name, tensor in self.moments.items():
            arrays[f"optimiser.{name}"] = tensor.cpu().numpy()
        arrays["generator"] = self.generator.get_state().numpy()
        arrays |= {
            name: np.array([getattr(self, name)], np.int64) for name in ("step_number", "run_steps")
        }
        arrays.update({f"gate.{name}": array for name, array in self.skill_gate.state().items()})
        arrays["streak"] = self.skip_counts[1:2].cpu().numpy()
        arrays["arm_frequencies"] = self.loss_inputs["arm_frequencies"].cpu().numpy()
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore a state that ``state`` returned."""

        def to_tensors(prefix: str) -> dict[str, Tensor]:
            return {
                name: torch.from_numpy(np.array(array))
                for name, array in drop_prefix(prefix, state).items()
            }

        for prefix, module in self._get_saved_modules().items():
            module.load_state_dict(to_tensors(f"{prefix}."))
        saved_moments = to_tensors("optimiser.")
        for name, moments in self.moments.items():
            if saved_moments[name].numel() != moments.numel():
                raise InvalidInput(
                    "the file must have as many optimiser values as its network has parameters"
                )
            moments.copy_(saved_moments[name].reshape(moments.shape))
        generator_state = torch.from_numpy(np.array(state["generator"]))
        if generator_state.shape == self.generator.get_state().shape:
            self.generator.set_state(generator_state)
        else:  # the state was saved on another kind of device: derive a seed from it
            self.generator.manual_seed(zlib.crc32(generator_state.numpy().tobytes()))
        self.step_number, self.run_steps = (
            check_int(name, int(state[name][0]), minimum=0) for name in ("step_number", "run_steps")
        )
        self.skill_gate.restore(drop_prefix("gate.", state))
        self.skip_counts[1] = float(state["streak"][0])
        frequencies = self.loss_inputs["arm_frequencies"]
        frequencies.copy_(
            torch.from_numpy(np.array(state["arm_frequencies"])).reshape(frequencies.shape)
        )

    def __reduce__(self) -> tuple[Callable[..., Learner], tuple[Any, ...]]:
        """Copy and pickle the arguments and the state, because copies of tensors would not be views
        of one vector.
        """
        arguments = {
            "recipe": self.recipe,
            "feature_shape": self.encoder.context_shape,
            "n_arms": self.n_arms,
            "has_shared_arms": self.has_shared_arms,
            "feedback": self.feedback,
            "seed": self.seed,
            "device": self.device,
            "standardise_rewards": self.standardise_rewards,
            "module": self._module,
            "domains": self.domains,
            "has_intercept": self.has_intercept,
        }
        return _rebuild_learner, (arguments, self.state(), self.uses_cuda_graph)


def _rebuild_learner(
    arguments: dict[str, Any], state: Mapping[str, AnyArray], uses_cuda_graph: bool
) -> Learner:
    """Return a new learner with these arguments and this state."""
    learner = Learner(**arguments)
    learner.restore(state)
    learner.uses_cuda_graph = uses_cuda_graph
    return learner


def _copy_module(module: _Module) -> _Module:
    """Return a copy of a module and its tensors, in half the time of ``copy.deepcopy``."""
    module_copy = copy.copy(module)
    module_copy._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().clone(), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    buffers = module._buffers.items()
    children = module._modules.items()
    module_copy._buffers = {
        name: None if buffer is None else buffer.clone() for name, buffer in buffers
    }
    module_copy._modules = {
        name: None if child is None else _copy_module(child) for name, child in children
    }
    return module_copy


def _find_other_buffers(
    encoder: nn.Module, ema_encoder: nn.Module | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the buffers that training may change and that belong to no ``DomainNorm``: of the
    encoder, and of its EMA.

    Buffers of batch norms that always use their running statistics are ignored, because there may
    be hundreds.
    """
    buffers: list[Tensor] = []
    ema_other_buffers: list[Tensor] = []
    for module, ema_module in zip(
        encoder.modules(), (ema_encoder or encoder).modules(), strict=True
    ):
        is_frozen_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training
        if not isinstance(module, DomainNorm) and not is_frozen_norm:
            buffers += module.buffers(recurse=False)
            ema_other_buffers += ema_module.buffers(recurse=False)
    return buffers, ema_other_buffers if ema_encoder is not None else []


def _initialise_gaussian(network: nn.Module) -> None:
    """Draw the weights of each layer from a normal distribution with variance 2 / inputs, and set
    biases to 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            n_inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(2 / n_inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
