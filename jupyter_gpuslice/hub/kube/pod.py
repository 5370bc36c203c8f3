"""Puts a patch on a pod as KubeSpawner makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes_asyncio.client import models as k8s

from .patch import ConflictError, NodeRule, PodPatch
from .quantity import number

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's runtime shows to a container."""


def apply(pod: Any, patch: PodPatch, container: str = "notebook") -> Any:
    """Add the patch to a ``V1Pod``, and return it.

    What the spawner's configuration has already said stays; :class:`ConflictError` where the patch
    wants something else, but for the scheduler: only its own can place what a stack shares.
    """
    meta, spec = pod.metadata, pod.spec
    meta.labels = _joined("labels", meta.labels, patch.labels)
    meta.annotations = _joined("annotations", meta.annotations, patch.annotations)
    if patch.scheduler:
        spec.scheduler_name = patch.scheduler
    box = next((each for each in spec.containers if each.name == container), None)
    if box is None:
        raise ConflictError(f"The pod has no container {container}, which is to use the GPU.")
    _resources(box, patch)
    _environment(box, {**_limits(box), **patch.environment})
    if patch.limits or patch.claims or patch.isolation:
        # What the pod's own environment says goes before what the stack says of its devices: a
        # configuration that says "all" would show it every GPU of the node.
        box.env = [each for each in box.env or () if _name(each) != VISIBLE]
    if patch.claims:
        spec.resource_claims = [*(spec.resource_claims or ()), *map(dict, patch.claims)]
    if patch.nodes:
        _nodes(spec, patch.nodes)
    return pod


def _joined(what: str, before: Mapping[str, str] | None, more: Mapping[str, str]) -> dict[str, str]:
    found = dict(before or {})
    for key, value in more.items():
        if found.setdefault(key, value) != value:
            raise ConflictError(
                f"The spawner's configuration sets {key} in the pod's {what} to {found[key]}, "
                f"and the profile needs {value}."
            )
    return found


def _resources(box: Any, patch: PodPatch) -> None:
    if not patch.limits and not patch.claims:
        return
    # KubeSpawner takes a mapping from the configuration as it is.
    given = box.resources
    if isinstance(given, Mapping):
        given = k8s.V1ResourceRequirements(**given)
    resources = given or k8s.V1ResourceRequirements()
    resources.limits = _joined("limits", resources.limits, patch.limits)
    resources.requests = _joined("requests", resources.requests, patch.limits)
    if patch.claims:
        # The client's class for these has had two names: plain JSON goes with any version.
        uses = [{"name": claim["name"]} for claim in patch.claims]
        resources.claims = [*(resources.claims or ()), *uses]
    box.resources = resources


def _limits(box: Any) -> dict[str, str]:
    """JupyterHub's variables that tell a server what it may use, where the pod's own limits say
    something else than the spawner's traits (``extra_resource_limits`` of KubeSpawner, say)."""
    given = box.resources
    if given is None:
        return {}
    if isinstance(given, Mapping):
        given = k8s.V1ResourceRequirements(**given)
    told = {}
    for amounts, ending in ((given.limits, "LIMIT"), (given.requests, "GUARANTEE")):
        memory, cpu = (number((amounts or {}).get(name)) for name in ("memory", "cpu"))
        if memory is not None:
            told[f"MEM_{ending}"] = str(int(memory))
        if cpu is not None:
            told[f"CPU_{ending}"] = f"{cpu.normalize():f}"
    return told


def _environment(box: Any, environment: Mapping[str, str]) -> None:
    kept = [each for each in box.env or () if _name(each) not in environment]
    box.env = [*kept, *(k8s.V1EnvVar(name=n, value=v) for n, v in environment.items())]


def _name(variable: Any) -> Any:
    return variable.get("name") if isinstance(variable, Mapping) else variable.name


def _nodes(spec: Any, rules: tuple[NodeRule, ...]) -> None:
    """Terms of a selector are alternatives: every rule goes into each of them."""
    expressions = [k8s.V1NodeSelectorRequirement(**rule.to_dict()) for rule in rules]
    spec.affinity = spec.affinity or k8s.V1Affinity()
    spec.affinity.node_affinity = spec.affinity.node_affinity or k8s.V1NodeAffinity()
    affinity = spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = (required.node_selector_terms if required else None) or [k8s.V1NodeSelectorTerm()]
    merged = []
    for term in terms:
        if isinstance(term, Mapping):
            term = k8s.V1NodeSelectorTerm(
                match_expressions=term.get("matchExpressions"), match_fields=term.get("matchFields")
            )
        term.match_expressions = [*(term.match_expressions or ()), *expressions]
        merged.append(term)
    affinity.required_during_scheduling_ignored_during_execution = k8s.V1NodeSelector(
        node_selector_terms=merged
    )
