"""Encoders: one network per file, each ending in a unit-norm latent."""

from daband.encoders.build import CustomFeatures, build_encoder
from daband.encoders.contract import Encoded, Encoder, Features, LatentSettings, encoders, unit_range
from daband.encoders.normalisation import DomainNorm, domain_rows
from daband.image_layout import image_layout

__all__ = [
    "CustomFeatures",
    "DomainNorm",
    "Encoded",
    "Encoder",
    "Features",
    "LatentSettings",
    "build_encoder",
    "domain_rows",
    "encoders",
    "image_layout",
    "unit_range",
]
