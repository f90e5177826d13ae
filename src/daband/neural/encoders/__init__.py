"""Encoders: one network per file, each ending in a latent of unit norm."""
