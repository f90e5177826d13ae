"""The terms of the objective (the loss)."""
