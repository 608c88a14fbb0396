"""The names of `horovod.tensorflow.keras.callbacks`."""

from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback"]
