"""Fixtures that start real servers on loopback. Filled together with the stores."""
