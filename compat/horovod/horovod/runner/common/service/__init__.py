"""Services that programs import from `horovod.runner.common.service`."""
