"""The new states of each slot, and the commit of a staged round as one version (`table.commit` creates it)."""
