"""The traffic of parameter servers beside gRPC: rdmacoll and its peers send payloads of several buffers."""
