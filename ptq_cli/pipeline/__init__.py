"""The stages composed: a recipe goes in, a run directory comes out. The verbs of the Python API."""
