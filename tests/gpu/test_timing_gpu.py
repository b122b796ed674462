"""timing on a GPU, the whole way: a stream that still runs when the call returns, a clock that tells a tenth. One GPU will do."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import GPU_N, needs_gpu
from test_probe_timing import audit

HERE = Path(__file__).parent
pytestmark = [pytest.mark.gpu, needs_gpu]
SUBJECTS = {"Slow": set(), "Early": {"early_return"}, "TellsTooLittle": {"false_time"}}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_with_a_fault_of_time(name, tmp_path):
    code, findings = audit(tmp_path, f"untimely_nccl:{name}", GPU_N, HERE)
    claims = [found["claim"] for found in findings]
    failed = {found["kind"] for found in findings if found["verdict"] == "FAIL"}
    assert failed == SUBJECTS[name], claims
    assert code == (1 if failed else 0), claims
    passed = {found["kind"] for found in findings if found["verdict"] == "PASS"}
    assert passed == {"early_return", "false_time"} - failed, claims


def test_nccl_as_it_is(tmp_path):
    """No alarm. On one GPU its calls may be too short for the clocks to be compared."""
    code, findings = audit(tmp_path, "nccl", GPU_N)
    assert code == 0, [found["claim"] for found in findings]
    by_kind = {(found["kind"], found["verdict"]) for found in findings}
    assert by_kind <= {("early_return", "PASS"), ("false_time", "PASS"), ("false_time", "INCONCLUSIVE")}
    assert ("early_return", "PASS") in by_kind
    print([found["claim"] for found in findings])
