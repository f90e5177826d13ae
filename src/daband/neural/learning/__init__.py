"""How an encoder is trained: settings, replay buffers and gradient steps. It does not depend on policies."""
