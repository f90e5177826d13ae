"""Take the gradient steps of neural policies.

Read ``_settings``, ``_learner`` and ``_gradient_step`` first. ``_replay_buffer`` and ``_batches`` provide the data,
``_stacked_runs`` and ``_flat_parameters`` the tensors of several runs, and ``_step_runners`` run the steps.
"""
