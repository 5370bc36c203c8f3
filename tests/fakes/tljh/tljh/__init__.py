"""A double of The Littlest JupyterHub's package, which is installed from its repository only.

It has what our configuration takes of it (the-littlest-jupyterhub 2, ``tljh/configurer.py`` and
``tljh/user_creating_spawner.py``). In place of making accounts it writes down what it would do.
"""
