"""The names of `horovod.tensorflow.keras.callbacks`."""

from rdmacoll.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from rdmacoll.keras.callbacks.checkpoint import TensorflowBestModelCheckpoint as BestModelCheckpoint

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
