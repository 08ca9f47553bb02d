"""What can be wrong with data."""

import zipfile
import zlib
from tokenize import TokenError

# What numpy and zipfile raise about damaged arrays. numpy reads an array's header as Python's tokens. RuntimeError:
# archives with a password, of a later version, or of a compression nobody knows.
UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, MemoryError, SyntaxError, RuntimeError),
    *(TokenError, zipfile.BadZipFile, zlib.error),
)


class DataError(ValueError):
    """Something about the data is wrong; the message says what, and the cure."""
