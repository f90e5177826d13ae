"""Define encoders, the networks that map contexts to features.

Read ``_encoder`` first. ``_mlp`` and ``_conv`` are the registered networks, and
``_pretrained`` loads the encoders of pairs.
``_domain_norm`` is their batch norm, ``_augmentation`` changes images in training, and
``_frozen_encoder`` exports trained encoders.
"""
