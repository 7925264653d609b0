"""Values of declared types become JSON and schemas, and come back checked.

What may enter: what works for the dataclasses and typed dictionaries of any room. Not what a document says:
the room that writes it knows.
"""
