"""Rows of the tables of a page."""


def row(*cells):
    return "| " + " | ".join(cells) + " |\n"


def head(names, lefts):
    """The row of names, and the one that aligns the columns: those in `lefts` to the left."""
    return row(*names) + "|" + "|".join("---" if i in lefts else "--:" for i in range(len(names))) + "|\n"
