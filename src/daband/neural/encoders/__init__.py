"""Define encoders, the networks that map contexts to features.

Read ``_encoder`` first. ``_mlp``, ``_conv`` and ``_pretrained`` are the registered networks.
``_domain_norm`` is their batch norm, ``_augmentation`` changes images in training, and
``_frozen_encoder`` exports trained encoders.
"""
