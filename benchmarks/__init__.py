"""Benchmarks: each measures a ratio in one run, and writes its section of ``RESULTS.md``."""
