"""Side-by-side measurements behind `sage-snn bench`: contestants take turns in one run, and ratios are what counts."""
