"""Objectives: one term of the target-regret bound per file."""
