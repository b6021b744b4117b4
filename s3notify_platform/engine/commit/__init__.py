"""The new states of each slot, and the commit of a staged round as one table version (created by `table.commit`)."""
