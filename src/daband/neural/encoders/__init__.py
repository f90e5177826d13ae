"""Encoders: one network per file, each ending in a unit-norm latent."""

from daband._image_layout import image_layout
from daband.neural.encoders._augmentation import Augmentation, augment
from daband.neural.encoders._domain_norm import DomainNorm, has_bfloat16, triton_kernels
from daband.neural.encoders._encoder import (
    CustomFeatures,
    Encoded,
    Encoder,
    Features,
    InferenceEncoder,
    LatentSettings,
    build_encoder,
    domain_rows,
    encoders,
    latents_of_head,
    unit_range,
)
from daband.neural.encoders._frozen_encoder import freeze_encoder

__all__ = [
    "Augmentation", "CustomFeatures", "DomainNorm", "Encoded", "Encoder", "Features", "InferenceEncoder",
    "LatentSettings", "augment", "build_encoder", "domain_rows", "encoders", "freeze_encoder", "has_bfloat16",
    "image_layout", "latents_of_head", "triton_kernels", "unit_range",
]  # fmt: skip
