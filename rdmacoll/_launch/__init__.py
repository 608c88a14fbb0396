"""Starts the ranks of a job on this host and on others, and ends them: `rdmacoll run` and `rdmacoll.run`."""
