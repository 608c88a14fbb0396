"""A rank of one library in a comparison: `python -m team_rank SOCKET JSON`.

A package of its own with numpy as its only need: it runs in the environment of each library, where
rdmacoll may not be installed. It waits at a socket and does what it is told there.
"""
