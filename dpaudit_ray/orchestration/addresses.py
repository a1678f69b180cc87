"""Addresses of servers as HOST:PORT, where an IPv6 host has brackets: [fd00::1]:6379."""


def host_port(host: str, port: int) -> str:
    """Returns the address of a server; the host may be a name, IPv4 or IPv6."""
    bare = host.strip("[]")
    if ":" in bare:
        return f"[{bare}]:{port}"
    return f"{bare}:{port}"


def lacks_brackets(address: str) -> bool:
    """Returns whether an address is IPv6 without brackets, so that its port is ambiguous."""
    return address.count(":") > 1 and not address.startswith("[")


def has_port(address: str) -> bool:
    """Returns whether an address is HOST:PORT, and not a word such as `auto`."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdigit() and not lacks_brackets(address)
