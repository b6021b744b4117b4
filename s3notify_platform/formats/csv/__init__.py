"""CSV and TSV: finds the records, and converts texts to columns of a type."""
