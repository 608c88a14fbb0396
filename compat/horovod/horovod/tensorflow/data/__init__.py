"""tf.data's own service for the ranks of a training."""
