"""A report as one page that needs no network: verdict, metrics, layers, histograms, and how it was made.

``evidence`` is what the page shows beside the report; whoever has a run at hand gathers it. ``facts``,
``intervals``, ``layers``, ``tensors``, ``depth`` and ``changes`` turn documents into what a template only has
to write down, with geometry from ``scale``; ``page`` puts them together. Nothing here reads a file but its
own templates, and the same documents always make the same bytes.
"""
