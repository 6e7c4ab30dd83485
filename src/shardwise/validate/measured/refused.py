"""Why a measured run cannot be predicted."""

__all__ = ["NotModelledError"]


class NotModelledError(Exception):
    """A run that the model has no words for; the text is the reason."""
