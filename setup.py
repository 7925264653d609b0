"""Names the packages: those in ``ptq_cli``, and ``configs``, which is installed as ``ptq_cli/configs``."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["ptq_cli*"]), "ptq_cli.configs"])
