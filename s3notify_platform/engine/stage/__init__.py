"""Tasks write packs of what they have read, and the driver collects what counts."""
