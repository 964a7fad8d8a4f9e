"""Kernels that share their work out themselves, among roles with barriers: taken apart into blocks of one kernel, given
what only they have, checked, listed. Each module is a row of the pipeline or what such rows ask
(`driver.explicit_roles`); what any kernel needs does not belong here."""
