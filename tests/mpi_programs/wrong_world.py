"""A backend that is told of another number of ranks, or of another rank, than MPI started says so; prints one line a case."""

from auditor.backends.mpi import MpiBackend
from auditor.errors import ConfigError
from auditor.model import World
from auditor.mpi_control import MpiControl

control = MpiControl()
for rank_n, rank in ((3, control.rank), (control.size, control.rank + 1)):
    try:
        MpiBackend(World(rank_n=rank_n, local_ranks=(rank,), control=control), {})
    except ConfigError as error:
        if control.rank == 0:
            print(error, flush=True)
control.barrier()
