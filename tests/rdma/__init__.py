"""Real verbs without a device: a guest kernel with soft-RoCE, and the tests that run in it."""
