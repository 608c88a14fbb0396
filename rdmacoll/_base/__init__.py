"""The lowest layer: the log, threads, texts, and values from outside."""
