"""``python -m apexrl`` is ``apexrl``."""

import sys

from apexrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
