"""Define the objective (the loss) of neural policies, a weighted sum of terms.

Read ``_term`` (the interface of a term) and ``_objective`` (the sum) first. The other modules
define terms.
"""
