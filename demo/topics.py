"""The names and the one rule that the job and its proof have to agree on."""

from __future__ import annotations

FLIGHTS = "topic://public/default/flights"
DELAYS = "topic://public/default/delays"
ON_TIME = "topic://public/default/on_time"

OUTPUTS = (DELAYS, ON_TIME)

SEGMENTS = {FLIGHTS: 4, DELAYS: 2, ON_TIME: 2}
"""Topic → how many segments it is created with."""

SUBSCRIPTION = "flights-job"

LATE_MINUTES = 15
"""A flight belongs to the delays if it left later than this, or not at all."""
