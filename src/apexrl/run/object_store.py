"""Objects in S3, or wherever fsspec writes: every request has a limit of time, and every failure is a ``LinkError``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from apexrl.errors import ConfigError, LinkError

_SECONDS: Final = 30.0  # of one request, and one more for each megabyte
_MOST_LEFT_BEHIND: Final = 4
_BUCKETS: Final = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"))
"""Where a folder is a part of a name: to make one would make a bucket that is not there."""


class ObjectStore:
    """Objects below a URL. Picklable by nobody; for one thread.

    Args:
        url: as fsspec takes it: ``s3://BUCKET/PREFIX``, ``gs://…``, ``file:///PATH`` …
        name: a folder below it; empty: none.
        seconds: of one request, beside one more for each megabyte.

    Raises:
        ConfigError: it is no such URL, or what it needs is not installed.
    """

    def __init__(self, url: str, name: str = "", seconds: float = _SECONDS) -> None:
        parts = urlsplit(url)
        if "://" not in url or not parts.scheme:
            raise ConfigError(f"{url!r} is no URL of an object store: s3://BUCKET/PREFIX, file:///PATH …")
        user = parts.netloc.rpartition("@")[0]
        tail = f"/{name}" if name else ""
        self.shown = (url.replace(f"{user}@", "", 1) if user else url).rstrip("/") + tail
        """For messages: without user and password."""
        try:
            from fsspec.core import url_to_fs

            self._fs, root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{self.shown} cannot be used ({error}). pip install 'apexrl[object-store]' brings S3; others need the "
                "package of their own"
            ) from error
        self._has_folders = parts.scheme not in _BUCKETS
        self._root = str(root).rstrip("/") + tail
        self._seconds = seconds
        self._left_behind: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"ObjectStore({self.shown})"

    def check(self) -> None:
        """Write a small object and delete it. Raises LinkError."""
        self.write("write-test", b"apexrl")
        self.delete("write-test")

    def names(self, folder: str = "") -> list[str]:
        """Names of the objects and folders in ``folder``; empty where there is none. Raises LinkError."""
        try:
            found = self._do("cannot be listed", 0, self._fs.ls, self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def read(self, name: str, most: int) -> bytes:
        """The first ``most`` bytes of an object. Raises LinkError, or FileNotFoundError: there is none."""
        return bytes(self._do("cannot be read", most, self._fs.cat_file, self._path(name), start=0, end=most))

    def write(self, name: str, data: bytes) -> None:
        """Write an object. Raises LinkError."""
        self._write(name, len(data), self._fs.pipe_file, self._path(name), data)

    def put(self, name: str, path: str, nbytes: int) -> None:
        """Write the file at ``path`` as an object. Raises LinkError: also where fewer bytes have come."""
        self._write(name, nbytes, self._fs.put_file, path, self._path(name))
        there = self._do("cannot be looked at", 0, self._fs.size, self._path(name))
        if there != nbytes:
            raise LinkError(f"{self.shown}/{name} has {there} bytes instead of {nbytes}")

    def get(self, name: str, path: Path, nbytes: int) -> None:
        """Write an object into the file at ``path``. Raises LinkError, or FileNotFoundError: there is none."""
        self._do("cannot be read", nbytes, self._fs.get_file, self._path(name), str(path))

    def delete(self, name: str, folder: bool = False) -> None:
        """Delete an object, or a folder with all that is in it. Raises LinkError."""
        with suppress(FileNotFoundError):
            self._do("cannot be deleted from", 0, self._fs.rm, self._path(name), recursive=folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _write(self, name: str, nbytes: int, call: Callable[..., Any], *args: Any) -> None:
        try:
            if self._has_folders:
                parent = self._path(name).rpartition("/")[0]
                self._do("cannot be written", 0, self._fs.makedirs, parent, exist_ok=True)
            self._do("cannot be written", nbytes, call, *args)
        except FileNotFoundError as error:
            raise LinkError(f"{self.shown} cannot be written: {error}") from error

    def _do(self, trouble: str, nbytes: int, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One request in a thread of its own, which is left behind when it takes too long."""
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= _MOST_LEFT_BEHIND:
            raise LinkError(f"{self.shown} {trouble}: {len(self._left_behind)} earlier requests have not been answered")
        answer: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(call(*args, **options))
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, name="object store", daemon=True)
        thread.start()
        thread.join(seconds := self._seconds + nbytes / 1e6)
        if thread.is_alive():
            self._left_behind.append(thread)
            raise LinkError(f"{self.shown} {trouble}: no answer within {seconds:.0f} s")
        if not failure:
            return answer[0]
        if isinstance(failure[0], FileNotFoundError):
            raise failure[0]
        if not isinstance(failure[0], Exception):
            raise failure[0]
        raise LinkError(f"{self.shown} {trouble}: {type(failure[0]).__name__}: {failure[0]}") from failure[0]
