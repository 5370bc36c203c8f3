# GPU slices for The Littlest JupyterHub. As root:
#
#     /opt/tljh/hub/bin/python3 -m pip install 'jupyter_gpuslice[systemd]' 'jupyterhub<6'
#     install -m 600 gpuslice.py profiles.yaml /opt/tljh/config/jupyterhub_config.d/
#     tljh-config reload hub
#
# Each server is a systemd unit of the account that TLJH makes for its user, as before; now it may
# open the GPUs of its lease, and no others.

from tljh.configurer import load_config
from tljh.user_creating_spawner import UserCreatingSpawner

from jupyter_gpuslice.hub import configure
from jupyter_gpuslice.hub.systemd import GpuSliceSystemdSpawner


class GpuSliceUserCreatingSpawner(GpuSliceSystemdSpawner, UserCreatingSpawner):
    """Leases a slice, then makes the account, then starts the unit."""


# TLJH reads this file by itself, so what `tljh-config` sets is not in `c` yet.
c.JupyterHub.base_url = load_config()["base_url"]

# The GPUs are those of the machine's own broker, a service of the system (hub_config/workstation).
# Those who work on the machine without the hub take theirs from it as well.
configure(c, profiles="profiles.yaml", broker="/run/jupyter-gpuslice/broker.sock")
c.JupyterHub.spawner_class = GpuSliceUserCreatingSpawner

# By its whole path: it is the users' environment that is on their servers' path, not the hub's.
c.Spawner.cmd = ["/opt/tljh/user/bin/jupyterhub-singleuser"]
