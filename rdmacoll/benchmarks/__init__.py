"""Benchmarks beside other libraries. Each library has ranks of its own, which take turns in one run."""
