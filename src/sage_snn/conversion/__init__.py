"""From a trained ANN to a spiking network of the same weights."""

from .convert import to_snn
from .qcfs import QCFS

__all__ = ["QCFS", "to_snn"]
