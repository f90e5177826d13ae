"""The training of an encoder: settings, replay buffers and gradient steps. It does not depend on policies."""
