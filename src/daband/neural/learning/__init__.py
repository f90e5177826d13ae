"""Gradient steps of neural policies: batches, stacked runs, replay buffers and settings."""
