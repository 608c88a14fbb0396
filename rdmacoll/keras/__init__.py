"""What belongs to Keras: `rdmacoll.keras.callbacks`."""

from rdmacoll.keras import callbacks

__all__ = ["callbacks"]
