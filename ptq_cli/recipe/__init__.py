"""What the user asked for: TOML files and flags become one frozen, fully resolved ``Recipe``.

Here are the settings with their defaults, the strict decoding, the order in which layers override one
another, and the writing of the resolved recipe. Nothing here opens a model or data.
"""
