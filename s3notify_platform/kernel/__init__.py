"""What all other packages are written in: slots, time and randomness, errors, limits, ports, settings. No requests."""
