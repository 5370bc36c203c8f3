"""kube-scheduler, as far as resources, taints, affinity and claims of devices go."""

from __future__ import annotations

import uuid
from collections import Counter
from decimal import Decimal
from typing import Any

from . import dra
from .kinds import CLAIMS, EVENTS, NODES, PODS, TEMPLATES
from .rules import quantity, wanted
from .status import StatusError
from .store import Store, now

NAME = "default-scheduler"


def schedule(store: Store) -> None:
    """One round over the pods that wait."""
    for pod in store.all(PODS):
        spec, meta = pod["spec"], pod["metadata"]
        mine = spec.get("schedulerName", NAME) == NAME and not spec.get("schedulingGates")
        if spec.get("nodeName") or not mine or meta.get("deletionTimestamp"):
            continue
        claims = _claims(store, pod)
        if claims is not None:
            _place(store, pod, claims)


def _claims(store: Store, pod: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The pod's claims, those of templates made; ``None`` while one cannot be had."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    made = {
        each["name"]: each["resourceClaimName"]
        for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    found = []
    for entry in pod["spec"].get("resourceClaims") or ():
        claim = entry.get("resourceClaimName") or made.get(entry["name"])
        try:
            if claim is None:
                template = store.get(TEMPLATES, namespace, entry["resourceClaimTemplateName"])
                claim = _from_template(store, pod, entry["name"], template)
                made[entry["name"]] = claim
            found.append(store.get(CLAIMS, namespace, claim))
        except StatusError as error:
            event(
                store, pod, "Warning", "FailedResourceClaimCreation",
                f"PodResourceClaim {entry['name']}: {error}", "resource-claim-controller",
            )  # fmt: skip
            return None
    statuses = [{"name": key, "resourceClaimName": value} for key, value in made.items()]
    if statuses != (pod["status"].get("resourceClaimStatuses") or []):
        store.update(
            PODS,
            namespace,
            name,
            lambda body: body["status"].update(resourceClaimStatuses=statuses),
        )
    return found


def _from_template(store: Store, pod: dict[str, Any], entry: str, template: dict[str, Any]) -> str:
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    name = f"{pod['metadata']['name']}-{entry}-{uuid.uuid4().hex[:5]}"
    body = {
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": template["spec"]["spec"],
        "status": {},
    }
    store.create(CLAIMS, pod["metadata"]["namespace"], body)
    return name


def _place(store: Store, pod: dict[str, Any], claims: list[dict[str, Any]]) -> None:
    nodes = store.all(NODES)
    reasons: Counter[str] = Counter()
    for node in nodes:
        why = _unfit(pod, node) or _no_room(store, pod, node)
        allocated = dra.allocate(store, claims, node) if not why else None
        if not why and allocated is None:
            why = ["cannot allocate all claims"]
        if not why:
            _bind(store, pod, node, claims, allocated or [])
            return
        reasons.update(why)
    words = ", ".join(sorted(f"{count} {why}" for why, count in reasons.items()))
    message = (
        f"0/{len(nodes)} nodes are available: {words}."
        if nodes
        else ("no nodes available to schedule pods")
    )
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": message}  # fmt: skip
    if not any(each.get("message") == message for each in pod["status"].get("conditions") or ()):
        store.update(
            PODS, namespace, name, lambda body: body["status"].update(conditions=[condition])
        )
        event(store, pod, "Warning", "FailedScheduling", message, NAME)


def _unfit(pod: dict[str, Any], node: dict[str, Any]) -> list[str]:
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or ():
        if not any(_tolerates(each, taint) for each in spec.get("tolerations") or ()):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    selector = spec.get("nodeSelector") or {}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = affinity.get("nodeSelectorTerms")
    fits = selector.items() <= labels.items() and (
        not terms or any(_term(term, labels) for term in terms)
    )
    return [] if fits else ["node(s) didn't match Pod's node affinity/selector"]


def _tolerates(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    if toleration.get("key") not in (None, taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get(
        "value", ""
    )


def _term(term: dict[str, Any], labels: dict[str, str]) -> bool:
    for each in term.get("matchExpressions") or ():
        value, values = labels.get(each["key"]), each.get("values") or ()
        right = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[each["operator"]]
        if not right:
            return False
    return True


def _no_room(store: Store, pod: dict[str, Any], node: dict[str, Any]) -> list[str]:
    name = node["metadata"]["name"]
    here = [
        other
        for other in store.all(PODS)
        if other["spec"].get("nodeName") == name
        and other["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    lacking = []
    for resource, amount in wanted(pod).items():
        has = quantity((node["status"].get("allocatable") or {}).get(resource, "0"))
        held = sum((wanted(other).get(resource, Decimal(0)) for other in here), Decimal(0))
        if held + amount > has:
            lacking.append(f"Insufficient {resource}")
    return lacking


def _bind(
    store: Store,
    pod: dict[str, Any],
    node: dict[str, Any],
    claims: list[dict[str, Any]],
    allocations: list[dict[str, Any]],
) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    where = node["metadata"]["name"]
    for claim, allocation in zip(claims, allocations, strict=True):
        user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        status = {"allocation": allocation, "reservedFor": [user]}
        store.update(
            CLAIMS,
            namespace,
            claim["metadata"]["name"],
            lambda body, status=status: body.update(status=status),
        )

    def bound(body: dict[str, Any]) -> None:
        body["spec"]["nodeName"] = where
        body["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]

    store.update(PODS, namespace, name, bound)
    words = f"Successfully assigned {namespace}/{name} to {where}"
    event(store, pod, "Normal", "Scheduled", words, NAME)


def event(
    store: Store, pod: dict[str, Any], kind: str, reason: str, message: str, source: str
) -> None:
    """An event of a pod; the same one again is counted."""
    meta = pod["metadata"]
    for other in store.all(EVENTS, meta["namespace"]):
        same = (other["involvedObject"].get("uid"), other["reason"], other["message"])
        if same == (meta["uid"], reason, message):
            store.update(
                EVENTS,
                meta["namespace"],
                other["metadata"]["name"],
                lambda body: body.update(count=body["count"] + 1, lastTimestamp=now()),
            )
            return
    store.create(
        EVENTS,
        meta["namespace"],
        {
            "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": source},
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "eventTime": None,
        },
    )
