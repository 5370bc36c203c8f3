# JupyterHub whose servers are Docker containers of the hub's machine. Run on that machine:
#
#     jupyterhub -f jupyterhub_config.py
#
# It needs `pip install 'jupyter_gpuslice[docker]'`, Docker with NVIDIA's container toolkit, and the
# network `jupyter` and the image `gpu-notebook` as docs/containers.md makes them.

from jupyter_gpuslice.hub import configure

configure(c, profiles="profiles.yaml")
c.JupyterHub.spawner_class = "gpuslice-docker"

c.DockerSpawner.image = "gpu-notebook"
c.DockerSpawner.notebook_dir = "/home/jovyan/work"
c.DockerSpawner.volumes = {"jupyter-{username}": "/home/jovyan/work"}
c.DockerSpawner.network_name = "jupyter"
c.DockerSpawner.use_internal_ip = True
c.Spawner.default_url = "/lab"

# Containers reach the hub at the address of their network's gateway.
c.JupyterHub.hub_ip = "172.30.0.1"

# Choose an authenticator; this one lets in the accounts of this machine that are in this group.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"jupyter"}
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
