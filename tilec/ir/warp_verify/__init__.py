"""The verifier of warp programs, rule by rule. It shares no code with the passes that make a program."""
