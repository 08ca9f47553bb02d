"""What fires: a neuron a file."""

from .lif import LIFNode, spikingjelly_nodes, surrogate_shape

__all__ = ["LIFNode", "spikingjelly_nodes", "surrogate_shape"]
