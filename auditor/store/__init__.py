"""The record of a run: HDF5 shards while it runs, one ``run.h5`` afterwards. Format: results/README.md."""

from auditor.store.extract import extract, texts
from auditor.store.join import join, join_runs
from auditor.store.reader import RecordedArm, RunReader, next_attempt, read_events
from auditor.store.schema import (
    digest,
    events_path,
    observation_from_json,
    observation_to_json,
    shard_directory,
    shard_path,
)
from auditor.store.verify import verify
from auditor.store.writer import ShardWriter, append_event

__all__ = [
    "RecordedArm",
    "RunReader",
    "ShardWriter",
    "append_event",
    "digest",
    "events_path",
    "extract",
    "join",
    "join_runs",
    "next_attempt",
    "observation_from_json",
    "observation_to_json",
    "read_events",
    "shard_directory",
    "shard_path",
    "texts",
    "verify",
]
