"""The command line: ``main`` finds a command and maps errors to exit statuses.

``commands`` holds those of the core; a feature's command is in its room. A command builds a request and makes
one call of the pipeline.
"""
