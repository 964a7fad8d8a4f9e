"""The cost model: how many cycles a kernel takes, from its layouts or from its schedules. Nothing is decided here."""
