"""The package's version. setup.py and CMake read it from here."""

__version__ = "0.1.0"
