"""From a trained ANN to a spiking network of the same weights."""

from .balance import balance_thresholds
from .convert import to_snn
from .qcfs import QCFS

__all__ = ["QCFS", "balance_thresholds", "to_snn"]
