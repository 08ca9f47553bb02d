"""`python -m sage_snn` is `sage-snn`."""

from .cli import main

main()
