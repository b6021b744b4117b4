"""Slots, time and randomness, errors, limits, ports and settings, for all other packages. The package makes no
requests.
"""
