"""Passes over kernels with explicit roles: they split the roles, assign their mechanisms, check and list them. Each
module carries out a row of the pipeline (`driver.explicit_roles`), or serves one; what any kernel needs does not belong
here."""
