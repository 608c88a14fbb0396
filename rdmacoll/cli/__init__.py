"""The command `rdmacoll`."""
