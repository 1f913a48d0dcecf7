"""PQ trees, which represent the orders in which sets of variables are contiguous, and ED-Batch's memory layout.

`tree` is the data structure of Booth and Lueker (1976). `operands` implements ED-Batch's two passes (section 3.2,
appendix B), and `layouts` applies them to as many operands as one order can satisfy.

A layout is ideal if an ideal order exists (tested against all permutations). Otherwise operands are kept greedily,
largest first. (Line 14 of the paper's algorithm 6 applies the order for P nodes to Q nodes; the algorithm's comments on
the two union-find sets are swapped.)
"""
