"""Encoders: one network per file, each ending in a unit-norm latent."""

from daband.encoders.build import build_encoder
from daband.encoders.contract import Encoded, Encoder, Features, LatentSettings, encoders, unit_range
from daband.encoders.custom import CustomFeatures
from daband.encoders.normalisation import DOMAINS, DomainNorm
from daband.image_layout import image_layout

__all__ = [
    "DOMAINS",
    "CustomFeatures",
    "DomainNorm",
    "Encoded",
    "Encoder",
    "Features",
    "LatentSettings",
    "build_encoder",
    "encoders",
    "image_layout",
    "unit_range",
]
