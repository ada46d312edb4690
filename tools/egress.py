"""Which addresses we connect to on somebody's say: public ones, and private ones that settings list."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from tools.errors import EgressRefused

NOT_PUBLIC = "it is not a public address, and MCP_PRIVATE_NETWORKS (in .env) does not list its network"


def words_of(exc: EgressRefused) -> str:
    """Why an address was refused, as a sentence for the person who typed it."""
    host, address, reason = (str(exc.details.get(name) or "") for name in ("host", "address", "reason"))
    subject = f"{host} ({address})" if address and address != host else host
    return f"{subject} may not be reached: {reason}." if subject else f"This may not be reached: {reason}."


def checked_addresses(host: str, port: int, *, private_networks: Sequence[str]) -> list[str]:
    """The addresses of `host` that may be connected to; connect to one of these, not to the name again.

    Args:
        private_networks: CIDR of networks in private ranges that are allowed.

    Raises:
        EgressRefused: the name has no address, or one that is not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise EgressRefused(host=host, reason="the name has no address") from exc
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    networks = [ipaddress.ip_network(network, strict=False) for network in private_networks]
    for address in addresses:
        parsed = ipaddress.ip_address(address.split("%")[0])
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        real = mapped or parsed
        public = real.is_global and not real.is_multicast
        if not public and not any(real.version == network.version and real in network for network in networks):
            raise EgressRefused(host=host, address=address, reason=NOT_PUBLIC)
    return addresses


def check_url(url: str, *, private_networks: Sequence[str]) -> None:
    """Refuse a URL that may not be asked now.

    Raises:
        EgressRefused: its scheme, its credentials or its address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EgressRefused(url_scheme=parts.scheme, reason="only http and https URLs with a host name can be")
    if parts.username or parts.password:
        raise EgressRefused(host=parts.hostname, reason="its URL holds a user or password; tokens go into MCP_TOKENS")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise EgressRefused(host=parts.hostname, reason="the port is no port") from exc
    checked_addresses(parts.hostname, port, private_networks=private_networks)
