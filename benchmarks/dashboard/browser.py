"""A Chromium without a window, driven over WebDriver with the standard library alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from types import TracebackType
from typing import Any, Final, Self

_PATIENCE: Final = 60.0  # seconds, of one request
_SHOWN: Final = """
window.shown = null;
(function look() {
  if (performance.getEntriesByName("drawn").length) {
    requestAnimationFrame(() => requestAnimationFrame(() => { window.shown = performance.now(); }));
  } else requestAnimationFrame(look);
})();
"""
_TIMES: Final = """
const first = performance.getEntriesByName("first-contentful-paint")[0];
return [first ? first.startTime : null, window.shown];
"""


class Browser:
    """One page of a fresh profile, ``width`` × ``height`` pixels.

    Raises:
        SystemExit: there is no Chromium with its driver here.
    """

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        driver = shutil.which("chromedriver")
        if driver is None:
            raise SystemExit("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, start_new_session=True)
        self.group = self._driver.pid
        """The process group of the driver and of all of the browser's processes."""
        self._url = f"http://127.0.0.1:{port}"
        self._wait_until_ready()
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += [f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}"]
        words += ["--blink-settings=preferredColorScheme=0"] * dark
        asked = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": words}}}}
        self._url += f"/session/{self._ask('/session', asked)['sessionId']}"
        script = {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": _SHOWN}}
        self._ask("/goog/cdp/execute", script)

    def open(self, url: str) -> tuple[float, float]:
        """Load a page; seconds from the navigation to the first paint with content, and to all of its contents."""
        self._ask("/url", {"url": "about:blank"})  # only a part after # would load nothing
        self._ask("/url", {"url": url})
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            first, shown = self.script(_TIMES)
            if first is not None and shown is not None:
                return first / 1000.0, shown / 1000.0
            time.sleep(0.05)
        raise RuntimeError(f"{url} was not drawn within {_PATIENCE:g} s")

    def script(self, text: str) -> Any:
        """What a function with that body returns in the page."""
        return self._ask("/execute/sync", {"script": text, "args": []})

    def stop(self, number: int) -> None:
        """Send all of its processes a signal."""
        os.killpg(self.group, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stop(signal.SIGKILL)
        self._driver.wait()
        self._profile.cleanup()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._ask("/status")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=_PATIENCE) as answer:
            return json.load(answer)["value"]
