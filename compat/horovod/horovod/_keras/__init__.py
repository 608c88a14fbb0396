"""Modules of `horovod._keras` that programs import."""

from horovod._keras import callbacks as callbacks
