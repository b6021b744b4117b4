"""Tasks write packs of the rows that they have read, and the driver collects the packs that can be committed."""
