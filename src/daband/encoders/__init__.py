"""Encoders: one network per file, each ending in a unit-norm latent."""

from daband.encoders.contract import Encoded, Encoder, Features, LatentSettings, build_encoder, encoders, unit_range
from daband.encoders.normalisation import DOMAINS, DomainNorm

__all__ = [
    "DOMAINS",
    "DomainNorm",
    "Encoded",
    "Encoder",
    "Features",
    "LatentSettings",
    "build_encoder",
    "encoders",
    "unit_range",
]
