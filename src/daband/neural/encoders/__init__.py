"""Encoders. Each file registers one network."""
