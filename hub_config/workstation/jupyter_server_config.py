# For every JupyterLab of this machine: its GPUs are what the machine's broker gives.

c.GpuSlice.broker = "/run/jupyter-gpuslice/broker.sock"
