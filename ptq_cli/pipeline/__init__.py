"""The stages composed: a recipe goes in, a run directory comes out.

``resolve`` resolves the request, and ``run_directory`` knows the files of a run. Then one room for each
stage: ``preparing``, ``calibration`` (which ``counting`` feeds), ``placing`` and ``exporting``, ``measuring``
and ``evaluation``; ``views`` look at a run, ``inspection`` asks about a model beside its accuracy.
``run_quantize`` runs all stages. Every verb has one file, such as ``run_export.py``. Verbs return values and
print nothing; ``api`` gives them typed arguments.
"""
