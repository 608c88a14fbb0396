"""The meaning of Horovod 0.28.1 over rdmacoll's ops: names, argument orders, gradients, errors, objects.

`rdmacoll.tensorflow` and `rdmacoll.keras` show these names as Horovod's modules do.
"""
