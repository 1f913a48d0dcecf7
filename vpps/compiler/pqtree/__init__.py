"""PQ trees, which represent the orders in which sets of variables are contiguous, and ED-Batch's memory layout.

`tree` is the data structure of Booth and Lueker (1976). `operands` has the two passes of ED-Batch (section 3.2,
appendix B), and `layouts` applies them to as many operands as one order can satisfy.

A layout is ideal if an ideal order exists (tested against all permutations). Otherwise operands are kept greedily, the
most bytes first. (The paper's algorithm 6, line 14, uses the order of P nodes for Q nodes; its comments on the two
union-find sets are swapped.)
"""
