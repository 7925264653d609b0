"""The stages composed: a recipe goes in, a run directory comes out.

Every verb is one file here, such as ``run_export``, which returns a value and prints nothing; ``api`` gives
them typed arguments. ``decide_model`` decides what an export writes, ``exported_file`` reads what one wrote;
``calibration_view`` and ``tensor_plot`` look at a run, ``evaluation`` is what several verbs measure with.
"""
