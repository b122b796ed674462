"""Tolerances that were measured: a bound tied to its conditions, tried on planted errors and on legal orders that it did not see.

``requests`` says what may be asked, ``making`` turns what a workload gave into a record, ``record`` keeps it as a file.
"""

from auditor.calibrate.making import applied, calibrated
from auditor.calibrate.planted import Law
from auditor.calibrate.record import SCHEMA, differences, load, save
from auditor.calibrate.requests import build, request_of, resolved

__all__ = ["SCHEMA", "Law", "applied", "build", "calibrated", "differences", "load", "request_of", "resolved", "save"]
