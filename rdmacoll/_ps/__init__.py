"""Parameter servers' sessions: their start, their life, and the calls on them."""
