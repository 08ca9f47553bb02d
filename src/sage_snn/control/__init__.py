"""The control of a network: groups of nodes, what is read of them (sources), what is written to them (targets).

The only room that knows the insides of models.
"""

from .attention import Attention, LivingHeads
from .channels import Channels
from .copies import carries_foreign_state, copied, is_compiled, unwrapped
from .finder import around, find_blocks, find_groups, find_layers
from .group import Block, Group, group_nodes, owners
from .norms import find_norms, gain_of
from .outputs import watching
from .paths import code_paths
from .snapshot import unchanged
from .source import Firing, Gradient, Membrane, Source, reading
from .tap import Tap
from .target import NodeSlopes, is_node, nodes_of, require_open
from .tokens import TokenSlope, TokenSlopes

__all__ = [
    "Attention",
    "Block",
    "Channels",
    "Firing",
    "Gradient",
    "Group",
    "LivingHeads",
    "Membrane",
    "NodeSlopes",
    "Source",
    "Tap",
    "TokenSlope",
    "TokenSlopes",
    "around",
    "carries_foreign_state",
    "code_paths",
    "copied",
    "find_blocks",
    "find_groups",
    "find_layers",
    "find_norms",
    "gain_of",
    "group_nodes",
    "is_compiled",
    "is_node",
    "nodes_of",
    "owners",
    "reading",
    "require_open",
    "unchanged",
    "unwrapped",
    "watching",
]
