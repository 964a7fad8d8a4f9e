"""Prices of a loop's statements: their cycles, and the units that they occupy. Whole kernels are priced in
`passes.cost`."""
