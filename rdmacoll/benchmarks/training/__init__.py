"""Trainings with parameter servers beside TensorFlow's own over gRPC, turn by turn in one run."""
