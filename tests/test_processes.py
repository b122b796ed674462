"""What is kept of a job that ended: the processes' own last words, not the banner of the launcher that reports the death."""

from pathlib import Path

import pytest

from auditor.processes import Ending

OPEN_MPI = """CUDA error: an illegal memory access was encountered
[node-7:01278] *** Process received signal ***
[node-7:01278] Signal: Aborted (6)
[node-7:01278] Signal code:  (-6)
[node-7:01278] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x45330)[0x7fa60e645330]
[node-7:01278] [25] python3(_start+0x25)[0x657a05]
[node-7:01278] *** End of error message ***
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[28397,1],1]
  Exit code:    134
--------------------------------------------------------------------------
"""
MPICH = """CUDA error: an illegal memory access was encountered
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   EXIT CODE: 134
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Aborted (signal 6)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""


@pytest.mark.parametrize("printed", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_the_launchers_banner_is_not_the_subjects_words(tmp_path: Path, printed: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(printed)
    assert Ending(((1, -6),), log).last_words(2) == "CUDA error: an illegal memory access was encountered"


def test_a_log_that_was_never_written_has_no_words(tmp_path: Path) -> None:
    assert Ending((), tmp_path / "none").last_words() == ""
