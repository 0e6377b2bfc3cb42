import sys

from apexrl.cli.main import main

sys.exit(main())
