"""Numbers and names in texts for people. Pure."""

import re


def counted(number: int, noun: str) -> str:
    """Returns the number with the noun, like "1 object" and "2,000 objects"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sql_name(name: str) -> str:
    """Returns the name of a column, in backticks if SQL needs them."""
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"
