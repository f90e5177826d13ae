"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy."""
