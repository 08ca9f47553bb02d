"""What this machine runs, and whether it is right: `sage-snn doctor`."""
