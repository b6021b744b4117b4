"""CSV and TSV: where records end, and texts as columns of a type."""
