"""Scripts: the instruction table and what derives from it: encoder, disassembler, verifier."""
