"""Ranks that call each other: payloads of several buffers go to servers, come from them, or both."""
