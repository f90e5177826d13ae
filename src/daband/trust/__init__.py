"""What can be known of a policy in the target without rewards there, or with a few."""

__all__: list[str] = []
