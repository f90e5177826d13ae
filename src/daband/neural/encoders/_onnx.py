"""Conversion of modules to ONNX programs, which are compared with the module before they are used."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from daband._input_encoders import OnnxProgram
from daband.errors import InvalidInput

#: Largest difference between the program and the module, as a fraction of the largest output (at least 1).
_ROUNDING = 1e-5


def to_onnx(module: nn.Module, inputs: tuple[torch.Tensor, ...], *, names: Sequence[str] = ("images",)) -> OnnxProgram:
    """Return a module from ``inputs``, each (n, ...) with n at least 3, to one tensor (n, ...) as an ONNX program.

    The program takes any number of rows; if the module's code fixes that number, it takes one row at a time. With
    several ``names``, inputs are token ids (n, length), and the length is free as well.
    """
    module = module.eval()
    with torch.no_grad():
        parts = [tuple(one[:rows] for one in inputs) for rows in (1, 2, len(inputs[0]))]
        expected = [module(*part) for part in parts]
    reason = ""
    for any_rows in (True, False):
        try:
            program = OnnxProgram(_export(module, parts[1 if any_rows else 0], names, any_rows), single=not any_rows)
            for part, wanted in zip(parts, expected, strict=True):
                found = torch.from_numpy(program(*(one.numpy() for one in part)).copy())
                apart = float((found - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
                if found.shape != wanted.shape or not apart <= _ROUNDING:
                    raise ValueError(f"outputs differ by {apart:.2g}")
        except InvalidInput:  # onnxruntime is missing
            raise
        except Exception as error:  # the exporter and onnxruntime have many error classes
            reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        else:
            return program
    raise InvalidInput(f"{type(module).__name__} cannot be written as ONNX: {reason}")


def _export(module: nn.Module, example: tuple[torch.Tensor, ...], names: Sequence[str], any_rows: bool) -> bytes:
    axes = ({0: "n"} if any_rows else {}) | ({1: "length"} if len(names) > 1 else {})
    content: Any = io.BytesIO()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operations have no ONNX form
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                example,
                content,
                dynamo=False,  # the newer exporter takes ten times as long, and needs onnxscript
                opset_version=17,
                input_names=list(names),
                output_names=["features"],
                dynamic_axes={**dict.fromkeys(names, axes), "features": {0: "n"} if any_rows else {}},
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return content.getvalue()
