"""Readers of reproductions' tables, for their tests."""


def columns(table):
    """Return the values of every extra column, by its title."""
    return {name: [row.extra[at] for row in table.rows] for at, name in enumerate(table.extra)}
