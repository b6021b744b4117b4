"""What a picture in Markdown shows."""

import base64

PREFIX = "(data:image/svg+xml;base64,"


def drawn(markdown: str) -> str:
    """The SVG of an image in Markdown."""
    assert markdown.count(PREFIX) == 1
    return base64.b64decode(markdown.partition(PREFIX)[2].rstrip(")")).decode()
