"""The pipeline and what surrounds it: which passes run in which order, what is observed, warned of and decided. No
transformation of a kernel lives here."""
