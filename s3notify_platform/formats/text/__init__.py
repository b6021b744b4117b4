"""Text: what formats of records between line ends share, and the plainest of them."""
