"""Rules for rows: SQL predicates (`grammar`), evaluated on Arrow columns (`evaluation`), by name (`row_rules`)."""
