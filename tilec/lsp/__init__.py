"""`tilec lsp`: a language server for kernel files.

positions   conversion of places between tilec and an editor
names       definitions and uses of the names of a file
vocabulary  names of the language, parameters and dtypes at a place
hover       the description of the word under the cursor
findings    diagnostics and their fixes in the types of the protocol
worker      a process that checks and schedules; `helper` is its client
documents   the open files, and the results about each
answers     answers to an editor's requests
server      the protocol's connection, and the analysis of changed texts
"""
