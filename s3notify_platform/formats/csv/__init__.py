"""CSV and TSV: this package finds the records of a text, and converts their values to typed columns."""
