"""A report as one page that needs no network: verdict, metrics, layers, histograms, and how it was made.

``evidence`` holds what the page shows in addition to the report; the pipeline fills it from a run. ``facts``,
``interval_charts``, ``layer_table``, ``tensor_charts``, ``depth_chart`` and ``change_table`` turn documents
into values that the template only has to insert, with geometry from ``axis_scale``; ``page_view`` combines
them. This room reads no file except its own templates, and the same documents always make the same bytes.
"""
