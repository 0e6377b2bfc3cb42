"""Copies of checkpoints through s3fs, on moto's server, which speaks S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.errors import LinkError
from apexrl.run import checkpoint
from apexrl.run.checkpoint_store import RunCopies, generations, restore
from apexrl.run.folder import RunFolder
from apexrl.run.object_store import ObjectStore

pytestmark = [
    pytest.mark.object_store,
    pytest.mark.filterwarnings("ignore"),  # of its libraries
]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
                   "AWS_ENDPOINT_URL": f"http://{host}:{port}"}  # fmt: skip
    import boto3

    boto3.client("s3").create_bucket(Bucket="runs")
    yield "s3://runs/prefix"
    server.stop()
    os.environ.clear()
    os.environ.update(before)


def test_checkpoints_come_and_go_through_s3(bucket: str, tmp_path: Path) -> None:
    store = ObjectStore(bucket, "r")
    store.check()
    (tmp_path / "here").mkdir()
    folder = RunFolder(tmp_path / "here")
    folder.write_config(Config())
    folder.generations.begin()
    copies = RunCopies(store, folder.path, 1)
    for updates in range(1, 6):
        state = {"w": np.full(2_000_000, updates, np.float32)}  # 8 MB: by its path, not through memory
        checkpoint.save(folder.checkpoints, state, {"updates": updates}, keep=2)
        copies.copy({"env_steps": 1.0})
    assert generations(store) == [1]
    names = store.names("generation-0001")
    assert len([name for name in names if "update" in name]) == 3
    restored = restore(store, tmp_path / "there")
    assert restored is not None
    assert restored.newest == (0, 5)
    found = checkpoint.load_latest(tmp_path / "there" / "checkpoints")
    assert found is not None
    assert found.arrays["w"][0] == 5.0
    RunCopies(store, folder.path, 2).copy({})
    assert generations(store) == [2]


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(LinkError, match="s3://absent/r cannot be"):
        ObjectStore("s3://absent", "r").check()
