"""Where tiles lie and what moves them: mechanisms of copies and products, registers, orders of bytes, tensor memory."""
