"""Products by a warpgroup, and the descriptors of matrices in shared memory. Tensor memory is in `tcgen05`."""
