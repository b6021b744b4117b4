"""Rules of rows: predicates in SQL (`grammar`), evaluated on Arrow (`evaluation`), by name (`row_rules`)."""
