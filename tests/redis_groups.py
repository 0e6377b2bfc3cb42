"""Real Redis servers that belong together: a master and its replica under Sentinel, and a cluster."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.crc import key_slot

from apexrl.links.redis.server import Server
from free_ports import free_port
from redis_server import RedisServer

MASTER = "mymaster"


def wait_for(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "the servers do not come to it"
        time.sleep(0.05)
    return found


class Watched:
    """Two servers, one of them the other's replica, and a Sentinel that promotes it when the master dies."""

    def __init__(self, folder: Path, binary: str, **options: str | int) -> None:
        self._stack = ExitStack()
        password = str(options.get("requirepass", ""))
        auth = {"masterauth": password} if password else {}
        with ExitStack() as stack:
            self.servers = [
                stack.enter_context(RedisServer(folder / f"{number}", binary=binary, **options, **auth))
                for number in range(2)
            ]
            first, second = self.servers
            with second.client() as client:
                client.execute_command("REPLICAOF", first.address, first.port)
            self.sentinel_port = free_port()
            config = folder / "sentinel.conf"  # it writes into that
            lines = [
                f"port {self.sentinel_port}", f"bind {first.address}", f"dir {folder}", "logfile sentinel.log",
                f"sentinel monitor {MASTER} {first.address} {first.port} 1",
                f"sentinel down-after-milliseconds {MASTER} 500", f"sentinel failover-timeout {MASTER} 3000",
                *([f"sentinel auth-pass {MASTER} {password}"] if password else []),
            ]  # fmt: skip
            config.write_text("\n".join(lines) + "\n")
            self.sentinel = stack.enter_context(_Sentinel(folder, binary, config, self.sentinel_port))
            wait_for(lambda: len(self.ask("SENTINEL REPLICAS", MASTER)) == 1)
            self._stack = stack.pop_all()
        at = f":{password}@" if password else ""
        self.url = f"redis+sentinel://{at}127.0.0.1:1,{first.address}:{self.sentinel_port}/{MASTER}"
        """Its first Sentinel is not there."""

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def server(self, timeout: float = 10.0) -> Server:
        return Server(self.url, timeout)

    def ask(self, *words: Any) -> Any:
        """The Sentinel."""
        with redis.Redis(port=self.sentinel_port, protocol=2) as client:
            return client.execute_command(*words, return_responses=True)

    def kill_master(self) -> None:
        """Its replica is the master soon."""
        self.master().kill()

    def master(self) -> RedisServer:
        port = int(self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", MASTER)[1])
        return next(server for server in self.servers if server.port == port)


class _Sentinel(RedisServer):
    def __init__(self, folder: Path, binary: str, config: Path, port: int) -> None:
        self._config = config
        super().__init__(folder, binary=binary, port=port)
        self._ready = True

    def start(self) -> None:
        with (self.folder / "redis.log").open("ab") as log:
            command = [*self._command, str(self._config), "--sentinel"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        assert self._answers(10.0), (self.folder / "redis.log").read_text()


class Cluster:
    """Three masters, and with ``replicas`` one replica of each."""

    def __init__(self, folder: Path, binary: str, replicas: bool = False, **options: str | int) -> None:
        self._stack = ExitStack()
        own = {"cluster_enabled": "yes", "cluster_config_file": "nodes.conf", "cluster_node_timeout": 1000,
               "cluster_replica_validity_factor": 0, **options}  # fmt: skip
        with ExitStack() as stack:
            self.nodes = [
                stack.enter_context(RedisServer(folder / f"{number}", binary=binary, **own))
                for number in range(6 if replicas else 3)
            ]
            for number, node in enumerate(self.nodes):
                with node.client() as client:
                    if number < 3:
                        slots = range(number * 5462, min(16384, (number + 1) * 5462))
                        client.execute_command("CLUSTER", "ADDSLOTS", *slots)
                        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                    if number:
                        client.execute_command("CLUSTER", "MEET", self.nodes[0].address, self.nodes[0].port)
            if replicas:
                for master, replica in zip(self.nodes, self.nodes[3:], strict=False):
                    wait_for(lambda master=master, replica=replica: self._follow(replica, master))
            wait_for(lambda: all(self._whole(node, replicas) for node in self.nodes))
            self._stack = stack.pop_all()
        self.url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{self.nodes[1].port},127.0.0.1:{self.nodes[2].port}"
        """The first node that it names is not there; of the others one may die."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def server(self, timeout: float = 10.0) -> Server:
        return Server(self.url, timeout)

    def owner(self, key: str) -> RedisServer:
        """The living master that has ``key``, by its own word."""
        slot = key_slot(key.encode())
        for node in self.nodes:
            if node.process is not None:
                with node.client() as client:
                    for line in client.execute_command("CLUSTER NODES").values():
                        if "myself,master" in line["flags"] and any(
                            int(first) <= slot <= int((last or [first])[0]) for first, *last in line["slots"]
                        ):
                            return node
        raise AssertionError(f"nobody has slot {slot}")

    def move(self, key: str) -> RedisServer:
        """Move the slot of ``key``, with all that is in it, to another master; answers that."""
        slot, source = key_slot(key.encode()), self.owner(key)
        target = next(node for node in self.nodes[:3] if node is not source)
        with source.client() as here, target.client() as there:
            mine, its = (client.execute_command("CLUSTER", "MYID").decode() for client in (here, there))
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", mine)
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", its)
            while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                here.execute_command("MIGRATE", target.address, target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
            for client in (there, here):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", its)
        return target

    def _follow(self, replica: RedisServer, master: RedisServer) -> bool:
        with replica.client() as client, master.client() as other:
            try:
                client.execute_command("CLUSTER", "REPLICATE", other.execute_command("CLUSTER", "MYID"))
            except redis.ResponseError:  # it does not know it yet
                return False
            return True

    def _whole(self, node: RedisServer, replicas: bool) -> bool:
        with node.client() as client:
            told = client.execute_command("CLUSTER INFO")
            synced = node in self.nodes[:3] or client.info("replication").get("master_link_status") == "up"
        known = str(told["cluster_known_nodes"]) == str(len(self.nodes))
        return bool(told["cluster_state"] == "ok" and known and (synced or not replicas))
