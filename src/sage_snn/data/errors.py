"""What can be wrong with data."""


class DataError(ValueError):
    """Something about the data is wrong; the message says what, and the cure."""
