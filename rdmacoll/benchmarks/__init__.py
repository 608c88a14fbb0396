"""Benchmarks beside other libraries: each has ranks of its own, which take turns in one run."""
