"""Workers that train a model with parameter servers, ours or TensorFlow's own over gRPC.

A step is the same graph of TensorFlow 1 on both sides, run by a session: what differs is where variables are
and how gradients come there.
"""
