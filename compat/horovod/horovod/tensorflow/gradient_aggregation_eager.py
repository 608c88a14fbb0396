"""The helper of optimizers that add up several passes in eager execution."""

from rdmacoll._horovod.gradient_aggregation import LocalGradientAggregationHelperEager

__all__ = ["LocalGradientAggregationHelperEager"]
