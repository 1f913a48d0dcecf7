"""Orders in which sets of variables lie together: PQ trees, and the memory layout that ED-Batch derives from them.

`tree` is the data structure of Booth and Lueker (1976); `operands` are the two passes of ED-Batch (section 3.2,
appendix B), `layouts` runs them on as many operands as an order can please.

A layout is ideal wherever an ideal order exists (tested against all permutations); elsewhere what saves the most bytes
is kept, greedily. (The paper's algorithm 6, line 14, consults the order of P nodes for Q nodes; its comments on the two
union-find sets are swapped.)
"""
