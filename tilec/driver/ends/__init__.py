"""Passes at both ends of the table: from text to tile IR, and from a warp program to a cubin. They need the front end
or the code generator, which lie above the passes in `tilec.passes`."""
