"""`python -m fedwsq.cli`."""

import sys

from fedwsq.cli import main

sys.exit(main())
