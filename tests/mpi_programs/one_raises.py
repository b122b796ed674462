"""One rank fails while the others wait in a collective: the whole job must end, with the error's exit code."""

from auditor.errors import ConfigError
from auditor.mpi_control import MpiControl

control = MpiControl()
if control.rank == 1:
    raise ConfigError("planted failure")
control.barrier()
