"""The page of a report: markup, style and script, written into one file."""
