# JupyterHub on one machine whose users have accounts there. Run as root:
#
#     jupyterhub -f jupyterhub_config.py
#
# It needs `pip install 'jupyter_gpuslice[hub]'`. Put a server with TLS in front before anybody else
# can reach it.

from jupyter_gpuslice.hub import configure

# The spawner, the GPU service, its scopes and the spawn form, all from one file.
configure(c, profiles="profiles.yaml")

# Who may log in: accounts of this machine, in this group of it.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"jupyter"}
c.PAMAuthenticator.admin_groups = {"sudo"}

c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.Spawner.default_url = "/lab"
