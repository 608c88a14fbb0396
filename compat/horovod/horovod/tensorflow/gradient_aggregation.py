"""The helper of optimizers that add up several passes in a graph."""

from rdmacoll._horovod.gradient_aggregation import (
    LocalGradientAggregationHelper,
    apply_op_to_not_none_tensors,
    get_not_none_from_list,
)

__all__ = ["LocalGradientAggregationHelper", "apply_op_to_not_none_tensors", "get_not_none_from_list"]
