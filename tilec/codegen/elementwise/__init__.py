"""Nests of elements that each thread computes: steps, accesses to memory, atomics, reductions. Products are in
`tensor_cores`."""
