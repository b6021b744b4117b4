"""Slots, time and randomness, errors, limits, ports and settings, for all other packages. Makes no requests itself."""
