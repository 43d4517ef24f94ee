# SPDX-License-Identifier: Apache-2.0
"""Network faults made by the test itself: namespaces joined by a virtual cable, and connections reset from outside."""
import ctypes
import os
import socket
import subprocess

PIDFD_OPEN, PIDFD_GETFD = 434, 438
libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace that lives as long as a process of ours in it, which ends when we do, however that happens. It has no
    name: naming one needs mounts, and a chroot does not allow them."""

    def __init__(self):
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._holder.pid

    def wait_until_there(self):
        self._holder.stdin.write(b"there\n")
        self._holder.stdin.flush()
        if self._holder.stdout.readline() != b"there\n":
            raise OSError("cannot make a network namespace")

    def end(self):
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait()

    def prefix(self):
        """Put before a command, it runs inside."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net")

    def ip(self, *arguments):
        subprocess.run([*self.prefix(), "ip", *arguments], check=True, capture_output=True)


class Cable:
    """Two network namespaces, each with one address, joined by a cable that can be cut."""

    def __init__(self):
        self.hosts = ["10.99.0.1", "10.99.0.2"]
        self.spaces = []

    def __enter__(self):
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self):
        self.spaces = [Namespace(), Namespace()]
        for space in self.spaces:
            space.wait_until_there()
        self.spaces[0].ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(self.spaces[1].pid))
        for space, host in zip(self.spaces, self.hosts):
            space.ip("addr", "add", f"{host}/24", "dev", "cable")
            space.ip("link", "set", "cable", "up")
            space.ip("link", "set", "lo", "up")

    def __exit__(self, *_):
        for space in self.spaces:
            space.end()

    def prefix(self, side):
        return self.spaces[side].prefix()

    def cut(self):
        """Packets vanish without a word: each side now sends to a hardware address that nobody has."""
        for side in (0, 1):
            self.spaces[side].ip("neigh", "replace", self.hosts[1 - side], "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent")

    def mend(self):
        for side in (0, 1):
            self.spaces[side].ip("neigh", "del", self.hosts[1 - side], "dev", "cable")


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
