"""Encoders: one network per file, each ending in a unit-norm latent."""

from daband.encoders.contract import Encoded, Encoder, Features, LatentSettings, build_encoder, encoders, unit_range
from daband.encoders.normalisation import DOMAINS, DomainNorm, domain_index, frozen_statistics

__all__ = [
    "DOMAINS",
    "DomainNorm",
    "Encoded",
    "Encoder",
    "Features",
    "LatentSettings",
    "build_encoder",
    "domain_index",
    "encoders",
    "frozen_statistics",
    "unit_range",
]
