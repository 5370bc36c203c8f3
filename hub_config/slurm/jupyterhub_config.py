# JupyterHub whose servers are jobs of Slurm.
#
# It needs `pip install 'jupyter_gpuslice[slurm]'` where the hub runs, and JupyterLab, batchspawner
# and jupyter_gpuslice on the nodes.

from jupyter_gpuslice.hub import configure

configure(c, profiles="profiles.yaml")
c.JupyterHub.spawner_class = "gpuslice-slurm"

# What gres.conf offers besides whole GPUs: four shards of each, here.
c.GpuSliceSlurmSpawner.slurm = {"shards": 4}

c.SlurmSpawner.req_partition = "gpu"
c.SlurmSpawner.req_runtime = "8:00:00"
c.SlurmSpawner.req_memory = "16G"
c.JupyterHub.hub_connect_ip = "hub.cluster.example"
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 (the nodes reach it)

# Choose an authenticator; this one lets in the accounts of this machine that are in this group.
# They have to be accounts of the cluster: each job runs as its user.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"jupyter"}
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.Spawner.default_url = "/lab"
