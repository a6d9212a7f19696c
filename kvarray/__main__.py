"""`python -m kvarray`: the command line."""

import sys

from kvarray.cli import main

if __name__ == "__main__":
    sys.exit(main())
