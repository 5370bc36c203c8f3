"""JupyterHub with GPU slices: spawners, the spawn page, and the service that owns the GPUs.

In ``jupyterhub_config.py``::

    from jupyter_gpuslice.hub import configure

    configure(c, profiles="profiles.yaml")
"""

from __future__ import annotations

from .setup import ConfigurationError, configure

__all__ = ["ConfigurationError", "configure"]
