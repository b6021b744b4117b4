"""The new states of each slot, and the staged round as one version of the table (`table.commit` creates it)."""
