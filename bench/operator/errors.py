"""The one error of the benchmark."""


class BenchError(Exception):
    """What went wrong and what to do next, for the person at the terminal."""
