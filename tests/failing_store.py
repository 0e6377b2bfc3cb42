"""An object store in memory that fails, hangs, or keeps a part only, when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FailingStore(MemoryFileSystem):  # type: ignore[misc]
    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refuse: ClassVar[Callable[[str], bool]] = staticmethod(lambda path: False)
    """Whether a write to ``path`` fails."""
    hold: ClassVar[threading.Event] = threading.Event()
    """While it is not set, writes hang."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("failing://", "memory://"))
        return stripped

    @classmethod
    def begin(cls) -> None:
        """Empty, and in order."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.refuse = staticmethod(lambda path: False)
        cls.hold = threading.Event()
        cls.hold.set()

    def pipe_file(self, path: str, value: bytes, *args: Any, **options: Any) -> Any:
        self._trouble(path)
        return super().pipe_file(path, value, *args, **options)

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> Any:
        self._trouble(rpath)
        return super().put_file(lpath, rpath, *args, **options)

    def _trouble(self, path: str) -> None:
        self.hold.wait(60.0)
        if self.refuse(path):
            raise PermissionError(f"{path} is not yours")


fsspec.register_implementation("failing", FailingStore, clobber=True)
