"""Parquet files: a row is a sample.

What may enter: what asks pyarrow for rows, and makes arrays of columns.
"""
