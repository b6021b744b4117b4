"""Text: the common base of formats with records between line ends, and the simplest of these formats."""
