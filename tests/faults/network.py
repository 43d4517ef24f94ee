# SPDX-License-Identifier: Apache-2.0
"""Network faults made by the test itself: namespaces joined by a virtual cable, and connections reset from outside."""
import ctypes
import os
import socket
import subprocess

PIDFD_OPEN, PIDFD_GETFD = 434, 438
libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments, namespace=None):
    inside = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *inside, *arguments], check=True, capture_output=True)


class Cable:
    """Two network namespaces, each with one address, joined by a cable that can be cut."""

    def __init__(self):
        tag = f"mc{os.getpid()}"
        self.names = [f"{tag}a", f"{tag}b"]
        self.hosts = ["10.99.0.1", "10.99.0.2"]
        self.links = [f"{tag}a", f"{tag}b"]

    def __enter__(self):
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "netns", self.names[0], "type", "veth", "peer", "name", self.links[1], "netns", self.names[1])
        for name, host, link in zip(self.names, self.hosts, self.links):
            ip("addr", "add", f"{host}/24", "dev", link, namespace=name)
            ip("link", "set", link, "up", namespace=name)
            ip("link", "set", "lo", "up", namespace=name)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def prefix(self, side):
        # Not `ip netns exec`: that also mounts a new /sys, which a chroot does not allow.
        return ("nsenter", f"--net=/run/netns/{self.names[side]}")

    def cut(self):
        """Packets vanish without a word: each side now sends to a hardware address that nobody has."""
        for side in (0, 1):
            ip("neigh", "replace", self.hosts[1 - side], "lladdr", "02:00:00:00:00:99", "dev", self.links[side], "nud", "permanent",
               namespace=self.names[side])

    def mend(self):
        for side in (0, 1):
            ip("neigh", "del", self.hosts[1 - side], "dev", self.links[side], namespace=self.names[side])


def established_sockets(pid):
    """Descriptors of a process that are connected TCP sockets."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            next(lines)
            inodes |= {fields[9] for fields in map(str.split, lines) if fields[3] == "01"}
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            found.append(int(fd))
    return found


def reset_connections(pid):
    """Makes the kernel send RST on every connection of a process that goes on living. Returns how many."""
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    assert pidfd >= 0, os.strerror(ctypes.get_errno())
    count = 0
    try:
        for fd in established_sockets(pid):
            copy = libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
            if copy < 0:
                continue
            with socket.socket(fileno=copy) as connection:
                unspecified = (ctypes.c_char * 16)()  # AF_UNSPEC: dissolves the association, which aborts a connected stream
                count += libc.connect(connection.fileno(), unspecified, 16) == 0
    finally:
        os.close(pidfd)
    return count
