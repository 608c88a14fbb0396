"""Ranks that call each other. Payloads of several buffers go to servers, come from them, or both."""
