"""Who gets what: pool, placement, queue, leases and the durable ledger."""

from .broker import Broker
from .explain import Explanation, Refused
from .lease import Holder, Lease, Slice
from .ledger import Ledger, LedgerError
from .limits import Limits, Standing
from .policy import Policy
from .pool import Free, PoolDevice, granted, whole

__all__ = [
    "Broker",
    "Explanation",
    "Free",
    "Holder",
    "Lease",
    "Ledger",
    "LedgerError",
    "Limits",
    "Policy",
    "PoolDevice",
    "Refused",
    "Slice",
    "Standing",
    "granted",
    "whole",
]
