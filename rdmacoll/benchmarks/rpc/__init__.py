"""The traffic of parameter servers beside gRPC: payloads of several buffers, by rdmacoll and by its peers."""
