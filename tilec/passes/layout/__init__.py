"""Layouts of tiles and mechanisms of what moves and multiplies them: the rows of the pass table are here, and what
they use in three folders. What blocks and schedules need does not belong here."""
