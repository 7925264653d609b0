"""Parquet files: a row is a sample.

What may enter: code that asks pyarrow for rows and makes arrays from columns.
"""
