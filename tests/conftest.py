"""One hypothesis profile for all: the same examples on every machine, however busy it is."""

from hypothesis import settings

settings.register_profile("ptq", deadline=None, derandomize=True)
settings.load_profile("ptq")
