"""Collectives beside every peer that is installed; the same as `rdmacoll bench compare`."""

from rdmacoll.cli.bench_compare import compare

if __name__ == "__main__":
    compare()
