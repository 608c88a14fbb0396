"""Workers that train a model with parameter servers, ours or TensorFlow's own over gRPC.

A session runs the same graph of TensorFlow 1 on both sides. The sides differ in the place of the variables
and in the transport of the gradients.
"""
