"""`python -m tilec`: the command, from wherever the package lies."""

import sys

from tilec.cli.main import main

sys.exit(main())
