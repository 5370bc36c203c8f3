# JupyterHub whose servers are systemd units of its machine, each under its user's account. As root:
#
#     jupyterhub -f jupyterhub_config.py
#
# It needs `pip install 'jupyter_gpuslice[systemd]'` where the hub runs, and systemd 245 or later.

from jupyter_gpuslice.hub import configure

# The GPUs are those of the machine's own broker, a service of the system (hub_config/workstation).
# Those who work on the machine without the hub take theirs from it as well.
configure(c, profiles="profiles.yaml", broker="/run/jupyter-gpuslice/broker.sock")
c.JupyterHub.spawner_class = "gpuslice-systemd"

# Which devices a server may open is settled by its lease. These bound the rest of it.
c.SystemdSpawner.mem_limit = "32G"
c.SystemdSpawner.cpu_limit = 8.0
c.SystemdSpawner.isolate_tmp = True

# Choose an authenticator; this one lets in the accounts of this machine that are in this group.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"jupyter"}
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.Spawner.default_url = "/lab"
