"""Sessions of parameter servers: their start, their end, and the calls on them."""
