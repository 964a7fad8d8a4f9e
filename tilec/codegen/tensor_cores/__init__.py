"""Products by mma.sync, wgmma and tcgen05, and the fragments they take and give. The barriers that they arrive at are
in `barriers`."""
