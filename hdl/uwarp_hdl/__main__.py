"""``python -m uwarp_hdl``: the NIC's Verilog."""

import sys

from .verilog import main

sys.exit(main())
