"""Formats: parse the bytes of objects into Arrow rows and rejects. Formats need no Spark and send no requests.

A new format is one file and one entry in `registry`. Copy `text/plain_text.py`, the shortest format: its `cut` finds
the records in a text, and its parser makes an Arrow table of the records. `TextFormat` adds compression, encodings,
splits, limits, rejects and the search for bad records. A format's own options are fields of
`source.format_settings.FormatSettings`. The format's method `configured` reads these fields: see `csv/csv_format.py`.
"""
