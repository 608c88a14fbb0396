"""The running world of this process: init(), shutdown(), and the engine between them."""
