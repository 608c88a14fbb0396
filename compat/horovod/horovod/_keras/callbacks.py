"""The classes by which programs recognize the callbacks of Horovod."""

from rdmacoll.keras.callbacks import (
    BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallbackImpl,
    LearningRateScheduleCallback as LearningRateScheduleCallbackImpl,
    LearningRateWarmupCallback as LearningRateWarmupCallbackImpl,
    MetricAverageCallback as MetricAverageCallbackImpl,
)

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
]
