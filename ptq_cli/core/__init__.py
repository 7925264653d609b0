"""What every other room may use: errors, formats, granularity, the arithmetic, atomic files.

Only numpy and the standard library may be imported here.
"""
