"""The stages composed: a recipe goes in, a run directory comes out.

Every verb is one file here, such as ``run_export``, which returns a value and prints nothing; ``api`` gives
them typed arguments. They share ``setup``, then one room for each stage: ``calibration``, ``exporting``,
``evaluation``, ``tuning``; ``views`` look at a run, ``folders`` runs the verbs for each model of a folder.
"""
