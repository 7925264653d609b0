"""What every other room may rely on: errors, formats, granularity, the arithmetic, careful files.

Only numpy and the standard library may be imported here.
"""
