"""Schedulers that place one op after the other. They prove nothing: no bound and no solver is at home here."""
