"""The control of a network: groups of nodes, what is read of them (sources), what is written to them (targets).

The only room that knows the insides of models.
"""

from .attention import Attention, LivingHeads
from .channels import Channels
from .copies import carries_foreign_state, copied, is_compiled, unwrapped
from .finder import around, find_blocks, find_groups, find_layers
from .group import Block, Group, group_nodes, owners
from .outputs import watching
from .paths import code_paths
from .source import Firing, Source, reading
from .tap import Tap
from .target import NodeSlopes, is_node, nodes_of
from .tokens import TokenSlope, TokenSlopes

__all__ = [
    "Attention",
    "Block",
    "Channels",
    "Firing",
    "Group",
    "LivingHeads",
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
    "group_nodes",
    "is_compiled",
    "is_node",
    "nodes_of",
    "owners",
    "reading",
    "unwrapped",
    "watching",
]
