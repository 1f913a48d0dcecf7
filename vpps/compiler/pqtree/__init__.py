"""Orders in which sets of variables lie together: PQ trees, and the memory layout that ED-Batch derives from them.

`tree` is the data structure of Booth and Lueker (1976), `links` how its nodes hang together and how edits are undone;
`shapes` and `directions` are the two passes of ED-Batch (section 3.2, appendix B), `kept` runs them on as many operands
as an order can please, `layouts` says which are tried first and what came of it.
"""

from vpps.compiler.pqtree.layouts import Layout, layout
from vpps.compiler.pqtree.tree import PQTree

__all__ = ["Layout", "PQTree", "layout"]
