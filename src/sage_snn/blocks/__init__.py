"""The only room that knows the insides of models: where blocks are, where query and key are, where slopes go."""

from .block import Block, block_nodes, owners
from .copies import copied, unwrapped
from .finder import find_blocks
from .fusion import code_paths
from .outputs import watching
from .slopes import NodeSlopes, is_node, nodes_of
from .tap import Tap

__all__ = [
    "Block",
    "NodeSlopes",
    "Tap",
    "block_nodes",
    "code_paths",
    "copied",
    "find_blocks",
    "is_node",
    "nodes_of",
    "owners",
    "unwrapped",
    "watching",
]
