"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy."""

__all__: list[str] = []  # its files are imported by name; what users set is offered by ``daband.policies``
