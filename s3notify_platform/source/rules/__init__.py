"""Rules for rows.

A rule is a SQL predicate (`grammar`), is evaluated on Arrow columns (`evaluation`), and has a name (`row_rules`).
"""
