"""Membranes of every kind, for tests of neurons by whichever code."""

from hypothesis import strategies as st

from sage_snn.kernels.membrane import Membrane

MEMBRANES = st.builds(
    Membrane,
    tau=st.sampled_from([2.0, 1.3, 10.0]),
    threshold=st.sampled_from([1.0, 0.3]),
    reset=st.sampled_from([0.0, -0.2, None]),
    decay_input=st.booleans(),
    detach_reset=st.booleans(),
)
