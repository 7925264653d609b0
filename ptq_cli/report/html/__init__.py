"""A report as one page that needs no network: verdict, metrics, layers, histograms, and how it was made.

``fact_rows`` holds what the page shows in addition to the report; the pipeline fills it from a run.
``interval_charts``, ``tensor_cards`` and the tables turn documents into values that the template only has to
insert; ``page_view`` combines them. This room reads no file except its own templates, and the same documents
always make the same bytes.
"""
