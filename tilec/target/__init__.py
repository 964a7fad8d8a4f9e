"""Machine tables: reads and validates a target file, and prices instruction kinds by it. No kernel is known here."""
