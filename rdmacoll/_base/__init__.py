"""The lowest room: the log, threads, texts, and values that come from outside."""
