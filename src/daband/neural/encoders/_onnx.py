"""Conversion of modules to ONNX programs, which are compared with the module before they are used."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from daband._input_encoders import OnnxProgram
from daband.errors import InvalidInput

#: Largest difference between the program and the module, as a fraction of the largest output (at least 1).
_ROUNDING = 1e-5
#: Attempts, in order: torch's newer exporter (slow, needs onnxscript) or not, and any number of rows or one.
_ATTEMPTS = ((False, True), (False, False), (True, True))


def to_onnx(module: nn.Module, inputs: tuple[torch.Tensor, ...], *, names: Sequence[str] = ("images",)) -> OnnxProgram:
    """Return a module from ``inputs``, each (n, ...) with n at least 3, to one tensor (n, ...) as an ONNX program.

    The program takes any number of rows; if the module's code fixes that number, it takes one row at a time. With
    several ``names``, inputs are token ids (n, length), and the length is free as well.
    """
    module = module.eval()
    with torch.no_grad():
        parts = [tuple(one[:rows] for one in inputs) for rows in (1, 2, len(inputs[0]))]
        expected = [module(*part) for part in parts]
    reasons = []
    for dynamo, any_rows in _ATTEMPTS:
        try:
            example = parts[1] if any_rows else parts[0]
            program = OnnxProgram(_export(module, example, names, dynamo, any_rows), single=not any_rows)
            for part, wanted in zip(parts, expected, strict=True):
                found = torch.from_numpy(program(*(one.numpy() for one in part)).copy())
                apart = float((found - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
                if found.shape != wanted.shape or not apart <= _ROUNDING:
                    raise ValueError(f"outputs differ by {apart:.2g}")
        except ImportError as error:
            reasons.append(f"torch's newer exporter needs {error.name}")
        except InvalidInput:  # onnxruntime is missing
            raise
        except Exception as error:  # exporters and onnxruntime have many error classes
            reasons.append(next(iter(str(error).splitlines()), type(error).__name__)[:200])
        else:
            return program
    raise InvalidInput(f"{type(module).__name__} cannot be written as ONNX: {'; '.join(dict.fromkeys(reasons))}")


def _export(module: nn.Module, example: Any, names: Sequence[str], dynamo: bool, any_rows: bool) -> bytes:
    axes = {0: "n"} if len(names) == 1 else {0: "n", 1: "length"}
    axes = axes if any_rows else {at: label for at, label in axes.items() if at}
    content: Any = io.BytesIO()
    options: dict[str, Any] = {"input_names": list(names), "output_names": ["features"], "dynamo": dynamo}
    if dynamo:
        dynamic = dict.fromkeys(axes, torch.export.Dim.AUTO)
        options |= {
            "dynamic_shapes": (tuple(dynamic for _ in names),) if len(names) > 1 else (dynamic,),
            "verbose": False,
        }
    else:
        options |= {"dynamic_axes": {**dict.fromkeys(names, axes), "features": {0: "n"} if any_rows else {}}}
        options |= {"opset_version": 17}
    logger = logging.getLogger("torch.onnx")
    level, fast_path = logger.level, torch.backends.mha.get_fastpath_enabled()
    logger.setLevel(logging.ERROR)
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operations have no ONNX form
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(module, example, None if dynamo else content, **options)
    finally:
        logger.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return program.model_proto.SerializeToString() if dynamo else content.getvalue()  # type: ignore[union-attr]
