"""Tensor memory: its allocation, its copies, and the products into it. Barriers that they arrive at are in
`barriers`."""
