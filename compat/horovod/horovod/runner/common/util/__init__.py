"""Helpers that programs import from `horovod.runner.common.util`."""
