"""A report as one page that needs no network: verdict, metrics, layers, histograms, and how it was made.

``evidence`` is what the page shows beside the report; whoever has a run at hand gathers it. ``facts``,
``interval_charts``, ``layer_table``, ``tensor_charts``, ``depth_chart`` and ``change_table`` turn documents
into what a template only has to write down, with geometry from ``axis_scale``; ``page_view`` puts them
together. Nothing here reads a file but its own templates, and the same documents always make the same bytes.
"""
