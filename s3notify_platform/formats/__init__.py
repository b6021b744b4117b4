"""Formats: parse the bytes of objects into Arrow rows and rejects. Formats need no Spark and send no requests.

A new format is one file and one entry in `registry`. Copy `text/plain_text.py`, the shortest format: `cut` finds the
records in a text, and the parser makes a table of them. Compression, encodings, splits, limits, rejects and the search
for bad records come from `TextFormat`. A format's own options are fields of `source.format_settings.FormatSettings`,
which the format reads in `configured`, like `csv/csv_format.py`.
"""
