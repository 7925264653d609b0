"""Reports as text, as Markdown and as one page: the same rows, drawn from the documents of ``evaluation``.

What may enter: functions from a document to text or HTML. Nothing here measures, and no terminal is used.
"""
