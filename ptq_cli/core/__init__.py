"""What every other room may use: errors, number formats, documents, long work, careful files.

Only numpy and the standard library may be imported here.
"""
