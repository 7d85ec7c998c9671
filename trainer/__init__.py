"""Mayfly: training on AWS GPUs that live only as long as the work. Start at docs/architecture.md."""

__version__ = "0.1.0"
