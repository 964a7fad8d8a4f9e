"""The machine: it decodes a kernel into steps and runs them, group by group, block by block, cluster by cluster. What
one instruction does is in the other folders.
"""
