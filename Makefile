# Everything here sets itself up in .venv: a clean clone needs python3 (3.10 or newer) and make.
#
#   make demo                 a JupyterHub with GPU profiles at a local address
#   make demo CHECK=1         the same, walked through by a script: exit status tells
#   make test                 all checks: lint, types, unit and browser tests
#
# TORCH is what pip installs for PyTorch, before anything else can choose another one. It may hold
# any of pip's arguments: TORCH="torch --index-url <the CPU index named on pytorch.org>" saves
# gigabytes on a machine without a GPU.

PYTHON ?= python3
TORCH ?= torch==2.13.0
CHECK ?=
PYTEST_ARGS ?=

VENV := .venv
HUB5 := .venv-hub5
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# the virtual environment's own Node comes first: what the machine has may be old, or not there
WITH_NODE := PATH="$(CURDIR)/$(BIN):$$PATH"
HUB5_TESTS := cryptography hypothesis jupyterhub-fancy-profiles kubernetes-validate \
	openapi-spec-validator pytest pytest-jupyter[server] pytest-timeout requests websocket-client
LAB_SOURCES := $(shell find labextension/src labextension/style labextension/schema labextension/test \
	labextension/package.json labextension/yarn.lock labextension/tsconfig.json -type f 2>/dev/null)

# $(call quietly,WHAT IT DOES,COMMAND): one line; all that the command printed only if it fails
quietly = @echo "$(1) …"; log=$$(mktemp); if ( $(2) ) >"$$log" 2>&1; then rm -f "$$log"; \
	else status=$$?; cat "$$log" >&2; rm -f "$$log"; exit $$status; fi

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help:
	@sed -n 's/^#\( \{3,\}make\)/\1/p' $(firstword $(MAKEFILE_LIST))
	@echo "   make lint                 ruff, mypy, and the JupyterLab extension's linters and tests"
	@echo "   make test-hub5            the hub's tests with JupyterHub 5, in $(HUB5)"
	@echo "   make screenshots          the pictures in docs/images, taken from a running demo"
	@echo "   make docs                 the documentation, in build/docs"
	@echo "   make labextension         the JupyterLab extension alone, after a change in it"
	@echo "   make format               let ruff and prettier rewrite what they can"
	@echo "   make clean                remove what was built, and .venv"

.PHONY: demo
demo: $(VENV)/.stamp-labextension
	$(BIN)/jupyter-gpuslice demo $(if $(CHECK),--check)

.PHONY: test
test: lint $(VENV)/.stamp-chromium $(VENV)/.stamp-containers
	$(BIN)/coverage erase
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)

# Zero to JupyterHub and The Littlest JupyterHub come with JupyterHub 5.
.PHONY: test-hub5
test-hub5: $(HUB5)/.stamp
	$(HUB5)/bin/python -m pytest tests/hub $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-test $(VENV)/.stamp-labextension
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd labextension && $(WITH_NODE) jlpm lint:check
	cd labextension && $(WITH_NODE) jlpm test

.PHONY: format
format: $(VENV)/.stamp-test $(VENV)/.stamp-labextension
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd labextension && $(WITH_NODE) jlpm lint

.PHONY: screenshots
screenshots: $(VENV)/.stamp-test $(VENV)/.stamp-labextension $(VENV)/.stamp-chromium
	GPUSLICE_SCREENSHOTS="$(CURDIR)/docs/images" $(BIN)/python -m pytest tests/ui -q

.PHONY: docs
docs: $(VENV)/.stamp-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs build/docs

.PHONY: labextension
labextension: $(VENV)/.stamp-labextension

.PHONY: clean
clean:
	rm -rf $(VENV) $(HUB5) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf jupyter_gpuslice/labextension labextension/lib labextension/node_modules labextension/.yarn

# ---- what the targets above stand on -------------------------------------------------------------

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "jupyter_gpuslice needs Python 3.10 or newer; $(PYTHON) is" \
			"$$($(PYTHON) --version 2>&1). Choose another: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -q && apt-get install -y -q python3-venv; \
		else \
			echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
			exit 1; \
		fi; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The torch that was chosen comes first: any other requirement that names torch is then satisfied.
$(VENV)/.stamp-torch: $(VENV)/.stamp-venv
	$(PIP) install -q --upgrade pip
	$(PIP) install -q $(TORCH)
	@touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-torch pyproject.toml hatch_build.py
	$(PIP) install -q -e ".[demo,build]"
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-demo
	$(PIP) install -q -e ".[test,demo,build]"
	@touch $@

$(HUB5)/.stamp: $(VENV)/.stamp-labextension pyproject.toml
	$(PYTHON) -m venv $(HUB5)
	$(HUB5)/bin/pip install -q -e ".[docker,kube,slurm,systemd]" "jupyterhub<6" $(HUB5_TESTS)
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-demo
	$(PIP) install -q -e ".[docs]"
	@touch $@

# Built, then installed again: an editable install copies the built extension to where Lab looks.
$(VENV)/.stamp-labextension: $(VENV)/.stamp-demo $(LAB_SOURCES)
	$(call quietly,Fetching what the JupyterLab extension is built with,\
		cd labextension && $(WITH_NODE) jlpm install --immutable)
	$(call quietly,Building the JupyterLab extension,cd labextension && $(WITH_NODE) jlpm build:prod)
	$(PIP) install -q --no-deps -e .
	@touch $@

# Browser tests drive Debian's Chromium (or the one that GPUSLICE_TEST_CHROMIUM names).
$(VENV)/.stamp-chromium: $(VENV)/.stamp-venv
	@if [ -n "$$GPUSLICE_TEST_CHROMIUM" ] || command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; \
	else \
		echo "The browser tests need Chromium. On Debian and Ubuntu, as root: apt-get install chromium;" \
			"or name one: GPUSLICE_TEST_CHROMIUM=/path/to/chromium make test" >&2; exit 1; \
	fi
	@touch $@

# Tests in containers need podman and root; without them they are skipped, and say so.
$(VENV)/.stamp-containers: $(VENV)/.stamp-venv
	@if command -v podman >/dev/null && command -v runc >/dev/null && command -v debootstrap >/dev/null; \
		then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && apt-get install -y -q --no-install-recommends podman runc debootstrap; \
	else \
		echo "Tests in containers will be skipped: they need root, podman, runc and debootstrap."; \
	fi
	@touch $@
