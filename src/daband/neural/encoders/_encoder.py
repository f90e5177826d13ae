"""Define the interface of encoders, which map contexts to features of unit norm.

A registered network (``FeatureNetwork``) returns *penultimate features*. ``Encoder`` appends the
two dense layers of the paper, whose output is the features for the head. By default the penultimate
features are aligned between the domains. This improves target accuracy far more than aligning the
features for the head, which are fewer.

Read ``FeatureNetwork`` and ``Encoder`` first. ``InferenceEncoder`` is the copy that decides, and
``build_encoder`` builds encoders from settings.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.base._arguments import check_one_of
from daband.base._arrays import AnyArray, FloatArray
from daband.base._registry import Registry
from daband.errors import InvalidInput, did_you_mean
from daband.features._domain_names import DomainNames
from daband.features._image_layout import find_image_layout


class Encoding(NamedTuple):
    """The output of an encoder for B contexts."""

    #: The features for the head, (B, d), each row of unit norm.
    features: Tensor
    #: The features that are aligned between the domains, (B, w).
    aligned: Tensor


class FeatureNetwork(nn.Module):
    """A network that maps contexts (B, *context_shape) to penultimate features (B, width)."""

    #: The shape of one context.
    context_shape: tuple[int, ...]
    #: The number of penultimate features.
    width: int

    def forward(self, contexts: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        """Return features (B, width).

        Contexts are sorted by domain, and ``rows_per_domain[i]`` come from domain i.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DenseSettings:
    """The settings of the two dense layers at the end of every encoder."""

    #: The width of the second layer, which is the number of features for the head.
    dimension: int = 64
    #: The width of the first layer.
    hidden: int = 100
    #: The features that are aligned: "penultimate" (before the dense layers) or "last" (after them,
    #: as in the paper).
    aligned: str = "penultimate"

    def __post_init__(self) -> None:
        for name in ("dimension", "hidden"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"dense.{name} must be at least 1, got {getattr(self, name)}")
        check_one_of("dense.aligned", self.aligned, ("penultimate", "last"))


class Encoder(nn.Module):
    """A network followed by two dense layers, whose output is scaled to unit norm.

    Args:
        features: the network.
        dense: the settings of the dense layers.
    """

    def __init__(self, *, features: FeatureNetwork, dense: DenseSettings) -> None:
        super().__init__()
        self.features = features
        self.dense = dense
        #: The shape of one context.
        self.context_shape = features.context_shape
        self.first = nn.Linear(features.width, dense.hidden)
        self.second = nn.Linear(dense.hidden, dense.dimension)

    @property
    def dimension(self) -> int:
        """The number d of features for the head."""
        return self.dense.dimension

    @property
    def n_aligned_features(self) -> int:
        """The number w of aligned features."""
        return self.features.width if self.dense.aligned == "penultimate" else self.dense.dimension

    def forward(
        self, contexts: Tensor, *, rows_per_domain: Sequence[int] | None = None
    ) -> Encoding:
        """Encode contexts (B, *context_shape).

        Args:
            contexts: sorted by domain.
            rows_per_domain: the number of contexts of each domain; by default all come from the
                first domain.
        """
        if tuple(contexts.shape[1:]) != self.context_shape:
            raise InvalidInput(
                f"contexts must have shape (B, *{self.context_shape}), got {tuple(contexts.shape)}"
            )
        rows_per_domain = (len(contexts),) if rows_per_domain is None else rows_per_domain
        penultimate = self.features(to_unit_range(contexts), rows_per_domain=rows_per_domain)
        penultimate = penultimate.to(self.first.weight.dtype)
        device_type = penultimate.device.type
        # The dense layers are too small to be faster in lower precision.
        with (
            torch.autocast(device_type, enabled=False)
            if torch.is_autocast_enabled(device_type)
            else nullcontext()
        ):
            features = self.second(functional.relu(self.first(penultimate)))
            features = functional.normalize(features, dim=1)
        return Encoding(features, penultimate if self.dense.aligned == "penultimate" else features)


def to_unit_range(contexts: Tensor) -> Tensor:
    """Return contexts as floats.

    Contexts of type ``uint8`` are images, and are scaled from 0 to 255 to [0, 1].
    """
    if contexts.dtype == torch.uint8:
        return contexts / _MAX_BYTE  # one pass, to float32 whatever torch's default dtype is
    return contexts if contexts.is_floating_point() else contexts.to(torch.float32)


#: The largest value of a byte, by which images are divided. It is a tensor, so that the result is
#: float32.
_MAX_BYTE = torch.tensor(255.0, dtype=torch.float32)

#: A class or function that returns a network, with the keyword arguments ``context_shape`` and
#: optionally ``domains``.
NetworkBuilder = Callable[..., FeatureNetwork]
#: The registry of networks: ``@encoders.register("mine")`` registers one by name.
encoders: Registry[NetworkBuilder] = Registry("encoder", "daband.neural.encoders")


#: The maximum number of contexts that are encoded together.
_MAX_BATCH_ROWS = 2048
#: The maximum number of values in the contexts that are encoded together on a CPU, so that layers
#: stay in the cache.
_MAX_CPU_VALUES = 1 << 18


def make_rows_per_domain(domain: int, n_rows: int) -> tuple[int, ...]:
    """Return the argument ``rows_per_domain`` of an encoder if all rows come from the domain with
    this index.
    """
    return (0,) * domain + (n_rows,)


class InferenceEncoder:
    """A frozen encoder that computes features for the head from arrays.

    Args:
        network: the encoder, which never changes after this.
        device: the device of the encoder.
    """

    def __init__(self, network: Encoder, *, device: torch.device) -> None:
        self.network = network.requires_grad_(False).eval()
        self.device = device

    def encode(self, contexts: AnyArray, domain: int) -> FloatArray:
        """Return features for the head in float64, each row of unit norm: (B, d), or (B, K, d) for
        shared arms.

        ``contexts`` are (B, *context_shape), or (B, K, *context_shape) for shared arms, all from
        one domain.
        """
        tensor = torch.from_numpy(np.require(contexts, requirements=["C", "W"]))
        if tensor.dtype != torch.uint8:
            tensor = tensor.to(torch.float32)
        round_shape = tensor.shape[: tensor.ndim - len(self.network.context_shape)]
        rows = tensor.reshape(-1, *tensor.shape[len(round_shape) :])
        batch_size = _MAX_BATCH_ROWS
        if self.device.type == "cpu":
            batch_size = min(batch_size, max(64, _MAX_CPU_VALUES // math.prod(rows.shape[1:])))
        feature_batches = []
        with torch.no_grad():
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size].to(self.device)
                padded_batch = _pad_rows(batch) if self.device.type == "cuda" else batch
                rows_per_domain = make_rows_per_domain(domain, len(padded_batch))
                padded_features = self.network(
                    padded_batch, rows_per_domain=rows_per_domain
                ).features
                feature_batches.append(padded_features[: len(batch)])
        features: FloatArray = torch.cat(feature_batches).cpu().numpy().astype(np.float64)
        # Normalise again in float64, because the network's rows have unit norm only up to float32
        # rounding.
        features /= np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
        return features.reshape(*round_shape, -1)


def _pad_rows(contexts: Tensor) -> Tensor:
    """Append copies of the first context up to a power of two.

    GPU libraries are slow for each new number of rows.
    """
    n_missing = (1 << (len(contexts) - 1).bit_length()) - len(contexts)
    return (
        torch.cat([contexts, contexts[:1].expand(n_missing, *contexts.shape[1:])])
        if n_missing
        else contexts
    )


def build_encoder(
    network: str | nn.Module,
    *,
    context_shape: tuple[int, ...],
    dense: DenseSettings | None = None,
    domains: DomainNames | None = None,
    **options: object,
) -> Encoder:
    """Return an encoder for contexts of one shape.

    Args:
        network: a registered name, a custom module, or "auto", which is "conv" for images
            (channels, height, width) and "mlp" for all other contexts.
        context_shape: the shape of one context.
        dense: the settings of the dense layers after the network.
        domains: the names of the domains; one source and one target by default.
        options: keyword arguments of the network.
    """
    if isinstance(network, nn.Module):
        feature_network: FeatureNetwork = CustomFeatures(
            module=network,
            context_shape=context_shape,
            **options,
        )
    else:
        if network == "auto":
            network = "conv" if find_image_layout(context_shape) == "channels_first" else "mlp"
        build_network = encoders.get(network)
        argument_names = inspect.signature(build_network).parameters
        option_names = [name for name in argument_names if name not in ("context_shape", "domains")]
        for option in options:
            if option not in option_names:
                hint = (
                    f"{did_you_mean(option, option_names)} (its options: {', '.join(option_names)})"
                )
                raise InvalidInput(f"encoder {network!r} has no option {option!r}{hint}")
        if "domains" in argument_names:
            options["domains"] = domains
        feature_network = build_network(context_shape=context_shape, **options)
    return Encoder(features=feature_network, dense=DenseSettings() if dense is None else dense)


class CustomFeatures(FeatureNetwork):
    """A copy of a custom module that maps contexts (B, *context_shape) to outputs (B, ...), which
    are flattened.

    Its batch norms always use their running statistics, so that a context has the same features in
    training and in decisions.
    """

    def __init__(self, *, module: nn.Module, context_shape: tuple[int, ...]) -> None:
        super().__init__()
        # policies with the same network must not train each other's copy
        module = copy.deepcopy(module)
        self.module = module
        self.context_shape = tuple(context_shape)
        # the call with ``test_context`` must not change the statistics of batch norms
        module.eval()
        parameter = next(iter(module.parameters()), torch.zeros(()))
        with torch.no_grad():
            test_context = torch.zeros(
                (1, *context_shape), device=parameter.device, dtype=parameter.dtype
            )
            try:
                features = module(test_context)
            except (RuntimeError, ValueError, IndexError) as error:
                raise InvalidInput(
                    f"encoder must accept contexts of shape {self.context_shape}: {error}"
                ) from None
        if not isinstance(features, Tensor) or features.ndim < 2 or features.shape[0] != 1:
            raise InvalidInput(
                "encoder must return one tensor (B, ...) for contexts (B, *context_shape)"
            )
        self.width = features[0].numel()
        self.train(self.training)

    def train(self, mode: bool = True) -> CustomFeatures:
        super().train(mode)
        for submodule in self.module.modules():
            if isinstance(submodule, nn.modules.batchnorm._BatchNorm):
                submodule.eval()
        return self

    def forward(self, contexts: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        return self.module(contexts).flatten(1)


#: The minimum number of multiplications in a forward pass for which several threads are used.
_MIN_THREADED_MULTIPLICATIONS = 1e9
#: Environment variables by which users set the number of threads.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: The number of threads when daband was imported.
_N_DEFAULT_THREADS = torch.get_num_threads()


def needs_threads(network: nn.Module, *, context_shape: tuple[int, ...], n_contexts: int) -> bool:
    """Return True if a forward pass over ``n_contexts`` contexts is enough work for more than one
    thread.

    Multiplications are counted as if the output of every convolution had the size of the context.
    This is accurate enough to distinguish small networks from large ones.
    """
    n_positions = math.prod(context_shape[1:])
    n_multiplications = sum(
        weight.numel() * (n_positions if weight.ndim > 2 else 1) for weight in network.parameters()
    )
    return n_multiplications * n_contexts >= _MIN_THREADED_MULTIPLICATIONS


@contextmanager
def limit_threads(needs_threads: bool) -> Iterator[None]:
    """Use one thread in this block unless ``needs_threads``, or unless the user set the number of
    threads, in torch or in the environment.

    With small networks, threads have too little work and wait for one another, and on a busy
    machine this makes a step several times as long. The rule is fixed, so that results on the same
    machine are equal bit for bit.
    """
    n_threads = torch.get_num_threads()
    is_set_by_user = n_threads != _N_DEFAULT_THREADS or any(map(os.environ.get, _THREAD_VARIABLES))
    if needs_threads or is_set_by_user:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
