"""Packs: the data files of a table, which hold rows of many slots."""
