"""Formats: parse the bytes of objects into Arrow rows and rejects. Formats need no Spark and send no requests.

A new format is one file and one entry in `registry`. Its class derives from one of these bases:

    `field_lines.FieldLines`   lines that name their fields, like `level=info ms=3`. The subclass has one method,
                               `fields`; see `registry`.
    `text_format.TextFormat`   all other records in a text. An example is `text/plain_text.py`: its `cut`
                               finds the records, and its parser makes an Arrow table of them.
    `blocks.block_format`      `BlockFormat`: binary files whose blocks can be found from any place.
    `base.Format`              all other files.

The base classes of the text formats provide compression, encodings, splits, limits, rejects and the search for bad
records. A format's own options are fields of `source.format_settings.FormatSettings`. The format's method `configured`
reads these fields: see `csv/csv_format.py`.
"""
