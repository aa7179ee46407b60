"""`python -m fedwsq`."""

import sys

from fedwsq.cli import main

sys.exit(main())
