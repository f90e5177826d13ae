"""Encoders: one network per file, each ending in a unit-norm latent."""
