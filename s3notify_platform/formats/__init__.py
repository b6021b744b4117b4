"""Formats: bytes of objects in, Arrow rows and rejects out. No Spark, no requests of its own.

A new format is one file and one entry in `registry`. Copy `text/plain_text.py`, the shortest one: `cut` finds the
records in a text, and the parser makes a table of them. Compression, encodings, splits, limits, rejects and the search
for bad records come from `TextFormat`. A format with options of its own has them as fields of
`source.format_settings.FormatSettings`, and takes them in `configured`, like `csv/csv_format.py`.
"""
