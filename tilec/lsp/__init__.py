"""`tilec lsp`: what editors ask about kernel files while they are being written.

positions   places in a text as an editor counts them
names       what each name of a file is, and where else it stands
vocabulary  what can be written at a place: names of the language, parameters, dtypes
hover       what is known of the word under the cursor
findings    diagnostics and their fixes, as the protocol has them
worker      a process that checks and schedules, and what it finds; `helper` is our side of it
documents   the open files, and what has been found out about each
answers     what an editor is answered
server      the protocol's connection, and when a text is looked at
"""
