"""SystemdSpawner with an account for each user, made before the unit is started."""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from systemdspawner import SystemdSpawner
from traitlets import Dict


class UserCreatingSpawner(SystemdSpawner):
    user_groups = Dict(config=True)

    # Not a coroutine, as there: the account is made when `start` is called.
    def start(self) -> Awaitable[Any]:
        groups = [name for name, users in self.user_groups.items() if self.user.name in users]
        with Path(os.environ["TLJH_DOUBLE_ACCOUNTS"]).open("a") as file:
            file.write(f"jupyter-{self.user.name}: {' '.join(groups)}\n")
        # There it is the new account's name; here one that this machine has.
        self.username_template = getpass.getuser()
        self.disable_user_sudo = not self.user.admin
        return super().start()  # type: ignore[no-any-return]
