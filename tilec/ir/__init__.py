"""The two representations of a kernel, tile IR and warp IR, with their texts and verifiers, and what both are made of:
types, expressions, layouts. No pass is here.
"""
