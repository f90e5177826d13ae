"""Freeze a trained encoder for one domain, as arrays for numpy or as an ONNX program.

``TorchNetwork.freeze`` folds the batch norms of the network ``mlp`` into the layers before them, so
that numpy can compute it. All other networks, such as convolutions, pretrained backbones and custom
modules, stay in torch, and files contain them as an ONNX program. ``to_onnx`` converts a module to
ONNX.
"""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daband.base._arrays import AnyArray, FloatArray
from daband.errors import InvalidInput
from daband.features._input_encoders import OnnxProgram
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, InferenceEncoder, make_rows_per_domain
from daband.neural.encoders._mlp import MlpFeatures
from daband.serving._numpy_networks import MlpNetwork

#: The maximum difference between the outputs of an ONNX program and of its module, relative to the
#: largest output, or to 1 if that is larger.
_MAX_RELATIVE_ERROR = 1e-5


class TorchNetwork:
    """A trained encoder for contexts of one domain that torch computes.

    Files contain it as arrays of an ``MlpNetwork``, or as an ONNX program.
    """

    def __init__(self, encoder: InferenceEncoder, domain: int) -> None:
        self._encoder = encoder
        self._domain = domain

    def freeze(self) -> MlpNetwork | TorchNetwork:
        """Return a copy on the CPU, in numpy if possible."""
        encoder = self._encoder.network
        network = encoder.features
        if type(network) is not MlpFeatures:
            copied = copy.deepcopy(encoder).to("cpu")
            return TorchNetwork(InferenceEncoder(copied, device=torch.device("cpu")), self._domain)
        settings, arrays = _freeze_mlp(network, self._domain)
        layers = [
            *settings.pop("layers"),
            _fold_norm(encoder.first, None, self._domain),
            _fold_norm(encoder.second, None, self._domain),
        ]
        for index, (weight, bias) in enumerate(layers):
            arrays[f"dense.{index}.weight"] = weight.astype(np.float32)
            arrays[f"dense.{index}.bias"] = bias.astype(np.float32)
        return MlpNetwork({**settings, "layers": len(layers)}, arrays)

    @functools.cached_property
    def _program(self) -> OnnxProgram:
        """The encoder as an ONNX program."""
        encoder = self._encoder.network
        test_contexts = torch.rand(
            3, *encoder.context_shape, generator=torch.Generator().manual_seed(0)
        )
        return to_onnx(_UnscaledFeatures(encoder, self._domain), (test_contexts,))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for a file header."""
        shape = list(self._encoder.network.context_shape)
        return {"kind": "onnx", "context_shape": shape, "single": self._program.is_single_row}

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """The arrays for a file: the ONNX program as bytes."""
        return {"program": np.frombuffer(self._program.content, np.uint8)}

    def __call__(self, contexts: AnyArray) -> FloatArray:
        return self._encoder.encode(contexts, self._domain)


class _UnscaledFeatures(nn.Module):
    """An encoder whose features are not divided by their norm."""

    def __init__(self, encoder: Encoder, domain: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.domain = domain

    def forward(self, contexts: Tensor) -> Tensor:
        penultimate = self.encoder.features(
            contexts, rows_per_domain=make_rows_per_domain(self.domain, len(contexts))
        )
        return self.encoder.second(nn.functional.relu(self.encoder.first(penultimate)))


def _freeze_mlp(network: MlpFeatures, domain: int) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the header and the arrays of an ``mlp`` for one domain.

    Under "layers", the header has a list of weights and biases, into which norms are folded.
    """
    arrays: dict[str, AnyArray] = {}
    if network.normalise_input is not None:
        scale, shift = network.normalise_input.compute_affine(domain)
        arrays["input_scale"], arrays["input_shift"] = _to_float64(scale), _to_float64(shift)
    layers = [
        _fold_norm(layer, norm if isinstance(norm, DomainNorm) else None, domain)
        for layer, norm in zip(network.layers, network.norms, strict=True)
        if isinstance(layer, nn.Linear)
    ]
    return {"kind": "mlp", "layers": layers}, arrays


def _fold_norm(
    layer: nn.Linear, norm: DomainNorm | None, domain: int
) -> tuple[FloatArray, FloatArray]:
    """Return the weights and biases of a layer that equals the layer followed by the norm."""
    weight = _to_float64(layer.weight)
    bias = np.zeros(len(weight)) if layer.bias is None else _to_float64(layer.bias)
    if norm is None:
        return weight, bias
    scale, shift = (_to_float64(tensor) for tensor in norm.compute_affine(domain))
    return weight * scale[:, None], bias * scale + shift


def _to_float64(tensor: Tensor) -> FloatArray:
    """Return a tensor as a float64 array."""
    return tensor.detach().cpu().double().numpy()


def to_onnx(
    module: nn.Module, inputs: tuple[Tensor, ...], *, names: Sequence[str] = ("images",)
) -> OnnxProgram:
    """Convert a module to an ONNX program, and check the program on ``inputs``.

    Args:
        module: maps one or several tensors (n, ...) to one tensor (n, ...).
        inputs: examples of its inputs, with n at least 3.
        names: the names of the inputs. With several names, inputs are token ids (n, length) of any
            length.

    The program takes any number of rows. If the module's code fixes the number of rows, the program
    takes one row at a time (``OnnxProgram.is_single_row``).
    """
    module = module.eval()
    with torch.no_grad():
        samples = [tuple(tensor[:n_rows] for tensor in inputs) for n_rows in (1, 2, len(inputs[0]))]
        expected_outputs = [module(*sample) for sample in samples]
    failure = ""
    for takes_any_rows in (True, False):
        try:
            content = _export_onnx(
                module, samples[1 if takes_any_rows else 0], names, takes_any_rows
            )
            program = OnnxProgram(content, is_single_row=not takes_any_rows)
            for sample, expected_output in zip(samples, expected_outputs, strict=True):
                output = torch.from_numpy(program(*(tensor.numpy() for tensor in sample)).copy())
                max_output = max(1.0, float(expected_output.abs().max()))
                difference = float((output - expected_output).abs().max()) / max_output
                if output.shape != expected_output.shape or not difference <= _MAX_RELATIVE_ERROR:
                    raise ValueError(
                        f"outputs of the program differ by {difference:.2g} from the module's"
                    )
        except InvalidInput:  # onnxruntime is missing
            raise
        except Exception as error:  # the exporter and onnxruntime have many error classes
            failure = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        else:
            return program
    raise InvalidInput(f"{type(module).__name__} cannot be converted to ONNX: {failure}")


def _export_onnx(
    module: nn.Module, example: tuple[Tensor, ...], names: Sequence[str], takes_any_rows: bool
) -> bytes:
    """Return a module as the bytes of an ONNX file, for any number of rows or for one row."""
    row_axis = {0: "n"} if takes_any_rows else {}
    input_axes = row_axis | ({1: "length"} if len(names) > 1 else {})
    file: Any = io.BytesIO()
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operations cannot be exported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                example,
                file,
                dynamo=False,  # the newer exporter takes ten times as long, and needs onnxscript
                opset_version=17,
                input_names=list(names),
                output_names=["features"],
                dynamic_axes={**dict.fromkeys(names, input_axes), "features": row_axis},
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
    return file.getvalue()
