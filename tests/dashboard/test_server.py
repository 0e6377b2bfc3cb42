"""The dashboard over HTTP: who gets an answer, and what a page in one file holds."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from run_folders import append, make_run, rows, status_row

from apexrl.cli.main import main
from apexrl.dashboard import page, server
from apexrl.dashboard.answers import Answers
from apexrl.dashboard.run_index import RunIndex
from apexrl.errors import ConfigError, LinkError


@contextmanager
def dashboard(folder, command="dashboard"):
    """The command itself; yields the process and the address that it prints."""
    words = [sys.executable, "-m", "apexrl.cli", command, str(folder), "--address", "127.0.0.1:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(240, process.kill)
    timer.start()
    try:
        said = process.stdout.readline()
        yield process, re.search(r"http://\S+", said)[0]
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.read(), answer.headers


def refused(url, **headers):
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url, **headers)
    caught.value.close()
    return caught.value.code


def test_the_command_serves_runs_to_this_machine_alone_and_ends_with_ctrl_c(tmp_path):
    run = make_run(tmp_path, "a b<c>", rows(10))
    (run / "films").mkdir()
    (run / "films" / "best.mp4").write_bytes(b"0123456789")
    with dashboard(tmp_path) as (process, url):
        status, text, headers = get(url)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        for name in re.findall(r'(?:src|href)="(static/[^"]+)"', text.decode()):
            assert get(url + name)[0] == 200
        found = json.loads(get(url + "answers/runs")[1])
        assert [one["name"] for one in found] == ["a b<c>"]
        curves = "answers/curves?run=a+b%3Cc%3E"
        _, body, headers = get(url + curves)
        first = json.loads(body)
        assert refused(url + curves, **{"If-None-Match": headers["etag"]}) == 304
        append(run, [status_row(10)])
        then = json.loads(get(url + curves + "&cursor=" + first["cursor"])[1])
        assert then["status"]["updates"] == [10]
        status, film, _ = get(url + "film?run=a+b%3Cc%3E&file=films/best.mp4", Range="bytes=2-4")
        assert (status, film) == (206, b"234")
        for path in ("film?run=a+b%3Cc%3E&file=../../etc/passwd", "film?run=..&file=x.mp4", "answers/curves?run=.."):
            assert refused(url + path) == 404
        for path in ("answers/nothing", "static/../server.py", "static/%2e%2e/server.py", "static/vendor", "nothing"):
            assert refused(url + path) == 404
        many = "%0A".join(["a+b%3Cc%3E", *(f"{number:0100d}" for number in range(1000))])
        assert json.loads(get(url + "answers/compare?runs=" + many)[1])["runs"] == ["a b<c>"]
        assert refused(url + "answers/compare?metric=" + "x" * 5000) == 400
        assert refused(url, Host="evil.example") == 403
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=20)
        connection.request("POST", "/answers/runs", b"{}")
        assert connection.getresponse().status == 403
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()


def test_nothing_is_left_after_kill_9(tmp_path):
    run = make_run(tmp_path, "a", rows(10))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with dashboard(tmp_path) as (process, url):
        get(url + "answers/curves?run=a")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
        with pytest.raises(urllib.error.URLError):
            get(url)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def asked(app, path="/", query="", **headers):
    """The status and headers of one request, without a network."""
    import asyncio

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
             "headers": pairs, "scheme": "http", "server": ("x", 1), "client": ("x", 1), "http_version": "1.1",
             "root_path": "", "asgi": {"version": "3.0"}}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_under_another_address_a_token_is_needed(tmp_path):
    make_run(tmp_path, "a", rows(3))
    app = server.app(Answers(RunIndex(tmp_path)), token="sesame")
    for query, cookie in (
        ("", ""),
        ("token=wrong", ""),
        ("", "apexrl_dashboard=wrong"),
        ("", "\x00=;;="),
        ("token=", ""),
    ):
        assert asked(app, query=query, host="h", cookie=cookie)[0] == 403
    status, headers = asked(app, query="token=sesame", host="anything:1")
    assert status == 200
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert asked(app, path="/answers/runs", host="h", cookie=cookie.partition(";")[0])[0] == 200


def test_the_token_of_hosts_does_not_travel(tmp_path, monkeypatch, capsys):
    secret, file, served = "a token of hosts; with spaces & signs", tmp_path / "secret", []
    monkeypatch.setattr(server, "serve", lambda answers, listening, token: served.append(token))
    asked_for = ["dashboard", str(tmp_path), "--address", "0.0.0.0:0"]
    for words in ([], ["--token-file", str(file)], ["--token-file", str(file)]):
        monkeypatch.setenv("APEXRL_TOKEN", secret)
        assert main([*asked_for, *words]) == 0
    said = capsys.readouterr().out
    assert secret not in said
    assert file.read_text().strip() not in said
    assert served[0] != served[1] == served[2]
    for token in served:
        assert f"/?token={token} " in said
        app = server.app(Answers(RunIndex(tmp_path)), token)
        cookie = asked(app, query=f"token={token}", host="h")[1]["set-cookie"].partition(";")[0]
        assert asked(app, path="/answers/runs", host="h", cookie=cookie)[0] == 200


def test_without_a_token_requests_name_this_machine(tmp_path):
    app = server.app(Answers(RunIndex(tmp_path)))
    for host in ("localhost:6886", "LOCALHOST", "127.0.0.1:6886", "127.0.0.2:6886", "[::1]:6886", "[::1]"):
        assert asked(app, path="/answers/runs", host=host)[0] == 200, host
    for host in ("", "evil.example", "127.0.0.1.evil.example:6886", "localhost.evil.example", "10.0.0.1:6886", "[::2]"):
        assert asked(app, path="/answers/runs", host=host)[0] == 403, host


def test_an_error_of_an_answer_is_not_told_as_a_run_that_is_gone(tmp_path, monkeypatch):
    make_run(tmp_path, "a", rows(3))
    answers = Answers(RunIndex(tmp_path))
    app = server.app(answers)
    assert asked(app, path="/answers/nothing", host="localhost")[0] == 404
    monkeypatch.setattr(answers, "run", lambda name: {}[name])
    with pytest.raises(KeyError):
        asked(app, path="/answers/curves", query="run=a", host="localhost")


def test_addresses():
    with server.listen("0") as listening:
        assert server.is_this_machine(listening)
        taken = listening.getsockname()[1]
        assert server.url_of(listening) == f"http://127.0.0.1:{taken}/"
        with pytest.raises(LinkError, match="Choose another port"):
            server.listen(f"127.0.0.1:{taken}")
    with server.listen("0.0.0.0:0") as listening:
        assert not server.is_this_machine(listening)
        assert server.url_of(listening, "t").endswith("/?token=t")
        assert socket.gethostname() in server.url_of(listening)
    with pytest.raises(ConfigError, match="HOST:"):
        server.listen("here:there")


def test_a_report_is_one_file_that_holds_its_runs(tmp_path, capsys):
    make_run(tmp_path / "runs", "a</script><b>", rows(30), ended="env_steps", agent="dqn")
    make_run(tmp_path / "runs", "b", rows(30), ended="env_steps", agent="c51")
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), str(tmp_path / "runs" / "b"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    text = out.read_text("utf-8")
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert text.count("<script>") == text.count("</script>") == len(page.SCRIPTS) + 1
    held = json.loads(re.search(r"window\.APEXRL_HELD = (.*);</script>", text)[1])
    assert {run["name"] for run in held["answers"]["runs"]} == {"a</script><b>", "b"}
    assert len(held["answers"]["curves&run=b"]["status"]["updates"]) == 30
    assert held["answers"]["compare&metric=evaluation&axis=env_steps"]["groups"]


def test_a_report_of_no_run_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "--out", str(tmp_path / "x.html")]) == 2
    assert "no run" in capsys.readouterr().err
    make_run(tmp_path, "a", rows(3))
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "missing" / "x.html")]) == 2
    assert "cannot write --out" in capsys.readouterr().err


@pytest.mark.long
def test_watch_plays_a_trained_agent_and_films_it(tmp_path, capsys):
    short = ["--env-steps", "400", "--min-size", "50", "--eval-episodes", "1", "--serial"]
    assert main(["train", "cartpole", *short, "--out", str(tmp_path), "--name", "a"]) == 0
    with dashboard(tmp_path / "a", "watch") as (process, url):
        assert url.endswith("#/run/a")
        address = url.partition("#")[0]
        with urllib.request.urlopen(address + "watched", timeout=180) as stream:
            assert "multipart/x-mixed-replace" in stream.headers["content-type"]
            assert b"\xff\xd8" in stream.read(4000)  # a JPEG begins
            state = json.loads(get(address + "answers/watched?run=a")[1])
            assert state["episode"] >= 1
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0  # though somebody still looks
    capsys.readouterr()
    assert main(["watch", str(tmp_path / "a"), "--record", "2"]) == 0
    assert "best: " in capsys.readouterr().out
    assert (tmp_path / "a" / "films" / "best.mp4").stat().st_size > 1000
