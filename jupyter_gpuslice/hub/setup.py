"""What an administrator writes: one call in ``jupyterhub_config.py``."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jupyterhub
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from ..devices.process import Process
from .link import SECRET_VARIABLE, SETTINGS_VARIABLE, hub_secret
from .profiles import load_profiles, parse_profiles

SERVICE = "gpuslice"
PORT = 8079
LEDGER = "jupyter_gpuslice.sqlite"
ACCESS = f"access:services!service={SERVICE}"
POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Set in every pod (kubernetes.io, "Service environment variables")."""
CLUSTER_VARIABLES = (POD_VARIABLE, "KUBERNETES_SERVICE_PORT", "KUBECONFIG")
SERVER_SCOPES = ["users:activity!user", "access:servers!server"]
USER_SCOPES = ["self"]
"""JupyterHub's own scopes of the roles `server` and `user`, to which ours is added."""


class ConfigurationError(Exception):
    """The configuration cannot work; the message says what to write instead."""


def configure(
    c: Config,
    profiles: str | os.PathLike[str] | Mapping[str, Any],
    *,
    port: int = PORT,
    ledger: str | os.PathLike[str] = LEDGER,
    broker: str | os.PathLike[str] = "",
) -> None:
    """Give a hub GPU slices: its spawner, the GPU service with its scopes, and the spawn page.

    :param c: the configuration object of ``jupyterhub_config.py``.
    :param profiles: the path of a ``profiles.yaml`` (relative to the configuration file, else to
        the hub's working directory), or the same as a dictionary. It is checked at once:
        `ProfileError` names what is wrong.
    :param port: where the service listens: on loopback, and in a pod, where the hub's proxy may be
        in another one, on the pod's own address.
    :param ledger: the file that keeps the leases; on a local disk, never on NFS. Relative to the
        hub's working directory.
    :param broker: the Unix socket of the machine's own broker (``jupyter gpuslice broker``), where
        the hub's users shall share its GPUs with the accounts of the machine. Then the ledger is
        that broker's, and the hub has to run as root or as the broker's account.

    The devices are chosen by ``c.GpuSlice``, before or after this call:
    ``c.GpuSlice.simulate = "a100-80gb:2"`` for simulated ones, ``c.GpuSlice.reserve_mib`` for what
    is never granted of each. The spawner is ``gpuslice-local`` unless the configuration chooses
    another one; it has to be a `GpuSliceSpawner` too. Calling it again replaces what the first
    call set.
    """
    declared = _declared(profiles, sys._getframe(1).f_globals.get("__file__"))
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise ConfigurationError(f"configure(c, port={port!r}): a port is a number up to 65535.")
    url = f"http://{_address()}:{port}"
    if "spawner_class" not in c.JupyterHub:
        c.JupyterHub.spawner_class = "gpuslice-local"
    c.GpuSliceSpawner.profiles = declared
    if "concurrent_spawn_limit" not in c.JupyterHub:
        # A start that waits for its slice counts as one, and may wait for an hour: with the
        # hub's default nobody could log in any more behind a hundred of them.
        c.JupyterHub.concurrent_spawn_limit = 0
    base = c.JupyterHub.get("base_url", "/")
    c.LeasedSpawner.service_url = f"{url}{base.rstrip('/')}/services/{SERVICE}/api/v1/"
    pool = {"ledger": os.path.abspath(ledger)}
    if broker:
        pool["broker"] = os.path.abspath(broker)
    service: dict[str, Any] = {
        "name": SERVICE,
        "url": url,
        "command": [sys.executable, "-m", "jupyter_gpuslice.hub.service"],
        "environment": {
            SECRET_VARIABLE: _Late(lambda app: hub_secret()),
            SETTINGS_VARIABLE: _Late(lambda app: _settings(app, pool)),
            # Where a cluster's API is: JupyterHub gives its services nothing by itself.
            **{name: os.environ[name] for name in CLUSTER_VARIABLES if name in os.environ},
        },
        "oauth_no_confirm": True,
    }
    if jupyterhub.version_info >= (6,):
        # The service of a hub that was killed may need a while to let go of the ledger.
        # JupyterHub 5 waits for 10 seconds, always.
        service["timeout"] = 60
    _put(c.JupyterHub, "services", service)
    # The service may read who is in which group, for sums of use by group.
    _put(
        c.JupyterHub,
        "load_roles",
        {
            "name": f"{SERVICE}-service",
            "services": [SERVICE],
            "scopes": ["list:users", "read:users:groups"],
        },
    )
    # Users' servers read their own leases with the token that they have.
    _grow_role(c.JupyterHub, "server", SERVER_SCOPES)
    _let_users_in(c.JupyterHub)


class _Late(str):
    """An environment variable that is worked out when the service starts.

    Only then is the whole configuration known: what is set after `configure`, and on the command
    line. JupyterHub calls callable values of an environment; it also writes the environment to its
    database, where this is the empty text: the secret is never stored.
    """

    _value: Callable[[Any], str]
    """From JupyterHub's application."""

    def __new__(cls, value: Callable[[Any], str]) -> _Late:
        self = super().__new__(cls)
        self._value = value
        return self

    def __call__(self, spawner: Any) -> str:
        return self._value(spawner.user.service.app)

    def __deepcopy__(self, memo: Any) -> _Late:
        return self


def _address() -> str:
    """Where the hub's proxy reaches the service: in a pod its own address, which its name means.

    The name of the hub's Service would do for the proxy, but JupyterHub itself looks whether its
    service is there and ends if it is not: that must not depend on the ports of a Service.
    """
    if POD_VARIABLE in os.environ:
        try:
            return socket.gethostbyname(socket.gethostname())
        except OSError:
            pass
    return "127.0.0.1"


def _settings(app: Any, pool: Mapping[str, str]) -> str:
    """What the service is told, from the hub's complete configuration."""
    chosen = app.config.GpuSlice
    settings: dict[str, Any] = {"hub": Process.of(os.getpid()).to_dict(), **pool}
    # Only the spawner of pods has it: the cluster is the broker there.
    of_cluster = getattr(app.spawner_class, "cluster_settings", None)
    if of_cluster is not None:
        settings["kube"] = of_cluster(app.config)
    if chosen.get("simulate"):
        settings["simulate"] = str(chosen.simulate)
    if chosen.get("reserve_mib") is not None:
        settings["reserve_mib"] = int(chosen.reserve_mib)
    return json.dumps(settings)


def _declared(
    profiles: str | os.PathLike[str] | Mapping[str, Any], config_file: str | None
) -> str | dict[str, Any]:
    """The profiles, checked: a path made absolute, or the declaration itself."""
    if isinstance(profiles, Mapping):
        parse_profiles(dict(profiles), "profiles")
        return dict(profiles)
    path = Path(profiles)
    if config_file is not None:
        beside = Path(config_file).resolve().parent / path
        path = beside if beside.exists() else path
    try:
        load_profiles(path)
    except OSError as error:
        raise ConfigurationError(
            f"configure(c, profiles={os.fspath(profiles)!r}): {error.strerror or error}. "
            "It is the path of a profiles.yaml, beside the configuration file."
        ) from error
    return str(path.resolve())


def _put(section: Config, name: str, item: dict[str, Any]) -> None:
    """Add an item to a list of the configuration, in place of one with its name."""
    values = _items(section, name)
    values[:] = [value for value in values if value.get("name") != item["name"]]
    values.append(item)


def _items(section: Config, name: str) -> list[dict[str, Any]]:
    """The list itself, also where the configuration has only appended to it so far."""
    current = section[name] if name in section else getattr(section, name)
    if isinstance(current, LazyConfigValue):
        return current._extend  # type: ignore[no-any-return]
    if not isinstance(current, list):
        section[name] = list(current)
        current = section[name]
    return current  # type: ignore[no-any-return]


def _grow_role(section: Config, name: str, own: Sequence[str]) -> None:
    """Give a role of JupyterHub's, whose scopes are ``own``, access to the service as well."""
    if not _grown(section, name, own):
        _put(section, "load_roles", {"name": name, "scopes": [*own, ACCESS]})


def _grown(section: Config, name: str, own: Sequence[str]) -> bool:
    """Whether the configuration has the role, which then has the access."""
    for role in _items(section, "load_roles"):
        if role.get("name") == name:
            scopes = list(role.get("scopes", own))
            role["scopes"] = scopes if ACCESS in scopes else [*scopes, ACCESS]
            return True
    return False


def _let_users_in(section: Config) -> None:
    """Let everybody who has an account look at the service."""
    if jupyterhub.version_info < (6,):
        _grow_role(section, "user", USER_SCOPES)
    elif not _grown(section, "user", USER_SCOPES):
        # A role of ours would make the hub forget what else is added to that of users.
        section.extra_user_scopes.update({ACCESS})
