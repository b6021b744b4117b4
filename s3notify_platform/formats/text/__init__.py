"""Text: the common base of formats whose records are separated by line ends, and `text`, the simplest format of this
kind.
"""
