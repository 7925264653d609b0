"""Tables of the page as rows of text and classes, which the template inserts.

What may enter: a table for each file. No HTML.
"""
