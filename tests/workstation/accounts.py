"""Two accounts of this machine that are nobody's, to be two users with."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """An account and a home of its own."""

    name: str
    uid: int
    gid: int
    home: Path

    @property
    def prefix(self) -> list[str]:
        """The command that runs another one as this account.

        It may read what root may (CAP_DAC_READ_SEARCH), since the Python that runs the tests may
        lie in root's home. It may write and signal nothing but its own.
        """
        return [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.gid}",
            "--clear-groups",
            "--inh-caps=+dac_read_search",
            "--ambient-caps=+dac_read_search",
            "--",
        ]


def why_not() -> str:
    """Why this machine does not let us be two users; "" if it does."""
    if os.geteuid() != 0:
        return "to be two users needs root"
    return "" if shutil.which("setpriv") else "there is no setpriv(1)"


def two(root: Path) -> tuple[Account, Account]:
    """Two accounts with homes below ``root``, which gets readable for them."""
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    found = []
    for entry in pwd.getpwall():
        if entry.pw_uid != 0 and len(found) < 2:
            home = root / entry.pw_name
            home.mkdir(mode=0o700)
            os.chown(home, entry.pw_uid, entry.pw_gid)
            found.append(Account(entry.pw_name, entry.pw_uid, entry.pw_gid, home))
    one, other = found
    return one, other
