"""The tunnels between the hosts of a run: certificates, addresses, and the secrets that units on other hosts need.

Invariants:
- Only a host that was admitted gets a certificate, and only for its own name.
- Every tunnel knows the hosts of the run, and no host that was forgotten.
- Secrets go over the encrypted connection to a host agent, before the first unit that needs them.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from agentrl.config import outside_database
from agentrl.config.hosts import Host, need_tunnels
from agentrl.config.http_token import tokens_in_file
from agentrl.config.run import RunConfig
from agentrl.control.context import Context
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import AgentrlError, DiskError
from agentrl.protocol.messages import OpenTunnel, RunSecrets, TunnelOpened, TunnelPeers
from agentrl.protocol.specs import Role
from agentrl.tunnels.authority import Authority

log = logging.getLogger(__name__)
_ANY = ("0.0.0.0", "[::]", "*")


class HostTunnels:
    def __init__(self, context: Context, state_dir: Path) -> None:
        self._context = context
        self._state_dir = state_dir
        self._authority: Authority | None = None
        self._opened: dict[str, TunnelOpened] = {}
        self._certificates: dict[str, str] = {}

    @property
    def needed(self) -> bool:
        config = self._context.config
        return config is not None and need_tunnels(config.all_hosts)

    def configure(self, config: RunConfig) -> None:
        """Applies a changed configuration."""
        if need_tunnels(config.all_hosts):
            for host in self._context.peers.hosts():
                self.connected(host)

    def connected(self, host: str) -> None:
        """Handles the hello of a host agent."""
        if self.needed:
            here, bind = self._host(host), self._host(host).bind or self._host(host).address
            if not bind and host == self._context.host:
                bind = self._listens_at()
            self._context.peers.send_to_host(host, OpenTunnel(bind=bind, port=here.port, cache_bytes=here.cache))
            if self._url_file.exists():
                # Its secrets may have been replaced while it was away.
                self.send_secrets(host)

    def opened(self, host: str, tunnel: TunnelOpened) -> None:
        """Handles the message that the tunnel of a host listens or wants another certificate."""
        if not self.needed:
            return
        try:
            self._certificates[host] = self.authority.issue(host, tunnel.request)
        except AgentrlError as failed:
            log.error("host %s gets no certificate: %s", host, failed)
            return
        self._opened[host] = tunnel
        self.tell_all()

    @property
    def authority(self) -> Authority:
        """The authority that issues the certificates. Raises AgentrlError."""
        if self._authority is None:
            self._authority = Authority(self._state_dir, self._context.run.uuid)
        return self._authority

    def issue_again(self) -> None:
        """Give every host a certificate of the present authority. Raises AgentrlError."""
        for host, tunnel in self._opened.items():
            self._certificates[host] = self.authority.issue(host, tunnel.request)
        self.tell_all()

    def forgotten(self, host: str) -> None:
        if self._opened.pop(host, None) is not None:
            self._certificates.pop(host, None)
            self.tell_all()

    def before_spawn(self, host: str, role: Role) -> AgentrlError | None:
        """Prepares the host for a unit that is about to start. Returns the reason if it cannot start."""
        return self.send_secrets(host) if role is not Role.SIDECAR else None

    def send_secrets(self, host: str) -> AgentrlError | None:
        """Send the host the tokens of the run and, once it exists, the address of the database. Returns the error if
        that failed."""
        config = self._context.config
        if config is None:
            return None
        try:
            if host != self._context.host:
                self._context.peers.send_to_host(host, self._secrets(config))
            elif config.mongo.url is not None:
                self._keep_url(outside_database.read(config.mongo.url).url)
        except AgentrlError as failed:
            log.error("the units of host %s cannot get the address of the database: %s", host, failed)
            return failed
        return None

    def _keep_url(self, url: str) -> None:
        """Writes the URL for the units of this host, which find an embedded server in the same way."""
        with contextlib.suppress(OSError):
            if self._url_file.read_text() == url:
                return
        try:
            self._url_file.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as failed:
            raise DiskError(f"{self._url_file.parent} cannot be made: {failed.strerror}.") from failed
        replace_file(self._url_file, url.encode(), mode=0o600)

    def _secrets(self, config: RunConfig) -> RunSecrets:
        here, token = self._context.host, "\n".join(tokens_in_file(self._state_dir))
        if config.mongo.url is not None:
            # Read each time, because a person may have replaced a password or a certificate.
            outside = outside_database.read(config.mongo.url)
            return RunSecrets(token, mongo_host=here, outside_url=outside.url, outside_files=dict(outside.files))
        try:
            url = self._url_file.read_text().strip() if config.has_mongo else ""
        except OSError as failed:
            raise DiskError(f"{self._url_file} cannot be read: {failed.strerror}.") from failed
        return RunSecrets(token, mongo_url=url, mongo_host=here)

    @property
    def _url_file(self) -> Path:
        return self._state_dir / "mongo" / "url"

    def tell_all(self) -> None:
        """Send every host its certificate, the authorities that it trusts, and the addresses of the others."""
        if self._authority is None:
            return
        peers = {host: f"{self._address(host)}:{tunnel.port}" for host, tunnel in self._opened.items()}
        for host in self._opened:
            told = TunnelPeers(self._certificates[host], self._authority.trusted, peers)
            self._context.peers.send_to_host(host, told)

    def _address(self, host: str) -> str:
        if given := self._host(host).address:
            return given
        return self._listens_at() if host == self._context.host else self._opened[host].address

    def _listens_at(self) -> str:
        """The address of this host in `coordinator.listen`; empty if that is any address."""
        config = self._context.config
        listen = "" if config is None else config.coordinator.listen.removeprefix("tcp://").rpartition(":")[0]
        return "" if listen in _ANY else listen

    def _host(self, host: str) -> Host:
        config = self._context.config
        return Host() if config is None else config.all_hosts.get(host, Host())
