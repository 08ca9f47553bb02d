"""What fires: a neuron a file."""

from .diet import DietLIF
from .lif import LIFNode, spikingjelly_nodes, surrogate_shape
from .rate import RateIF
from .stdb import SpikeTime, STDBNode

__all__ = ["DietLIF", "LIFNode", "RateIF", "STDBNode", "SpikeTime", "spikingjelly_nodes", "surrogate_shape"]
