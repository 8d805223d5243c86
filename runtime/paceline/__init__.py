"""Paceline: a gRPC runtime that serves coding agents on speculative vLLM backends."""

from importlib.metadata import version

__version__ = version("paceline")
