"""Take the gradient steps of neural policies.

Read ``_settings``, ``_learner`` and ``_gradient_step`` first. ``_replay_buffer`` and ``_batches``
provide the data. ``_stacked_runs`` and ``_flat_parameters`` arrange the tensors of several runs so
that one step trains all of them. ``_stack_trainer`` repeats the step, on a GPU as a CUDA graph.
``_skill_gate``, ``_torch_settings`` and ``_distillation`` can be read on their own.
"""
