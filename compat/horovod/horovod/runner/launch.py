"""The command horovodrun, also as `python -m horovod.runner.launch`."""

from rdmacoll.cli.run import horovodrun_main as run_commandline

__all__ = ["run_commandline"]

if __name__ == "__main__":
    run_commandline()
