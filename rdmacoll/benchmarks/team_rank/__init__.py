"""A rank of one library in a comparison: `python -m team_rank SOCKET JSON`.

This package needs numpy alone: it runs in the environment of each library, where rdmacoll may be missing. The
rank waits at a socket for requests and answers them.
"""
