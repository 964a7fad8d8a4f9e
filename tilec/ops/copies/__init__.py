"""Operations that move tiles: copies, im2col, four rows, transposes. Which mechanism moves them is decided by
passes."""
