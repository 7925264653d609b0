"""A report, a gate result or a comparison as tables of plain text, Markdown and XML.

What belongs here: code that turns values into text that the terminal, files and the page share.
"""
