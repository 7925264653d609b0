"""A report, a gate or a comparison as tables of plain text, Markdown and XML.

What may enter: what turns values into text that the terminal, files and the page share.
"""
