"""Passes over kernels with explicit roles: they split the roles, assign their mechanisms, check and list them. Each
module is a row of the pass table (`driver.pipeline`), or serves one; what any kernel needs does not belong here."""
