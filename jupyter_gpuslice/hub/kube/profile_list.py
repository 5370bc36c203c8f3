"""Our profiles as KubeSpawner's own ``profile_list``, for hubs that keep KubeSpawner's spawn page
or that of jupyterhub-fancy-profiles. Pure, but for the file that `profile_list_of` reads.

Source: KubeSpawner 7, ``KubeSpawner.profile_list`` (kubespawner/spawner.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pprint import pformat
from typing import Any

import yaml

from ...request import GpuRequest
from ..choice import Choice, Profile, listed
from ..profiles import load_profiles
from .cluster import Cluster, Product
from .dialects import DIALECTS, Dialect, PodContext
from .family import Family, families, probes
from .patch import SHARE_VARIABLE, CannotExpressError, Manifest, PodPatch, share_of

OPTION = "request"
"""The option's name: ``user_options`` are then the same as those of our own spawners."""


@dataclass(frozen=True)
class Converted:
    """A ``profile_list``, the objects that it counts on, and what it cannot say.

    ``objects`` are created once, in the namespace of the servers.
    """

    profile_list: list[dict[str, Any]]
    objects: tuple[Manifest, ...]
    notes: tuple[str, ...]


def cluster_of(gpus: Mapping[str, int | None]) -> Cluster:
    """A cluster whose nodes carry these product labels; a GPU's memory in MiB, if it is known."""
    return Cluster(products=tuple(Product(name, mib) for name, mib in gpus.items()))


def convert(profiles: Iterable[Profile], dialect: Dialect, cluster: Cluster) -> Converted:
    """The profiles in a stack's words.

    What the stack cannot say is left out, and named in the notes: a choice, a profile of nothing
    else, requests of the users' own.
    """
    made, objects, notes = [], [], list[str]()
    for profile in profiles:
        maker = _Maker(profile, dialect, cluster)
        entry = maker.entry()
        notes += [f"{profile.slug}: {note}" for note in maker.notes]
        if entry is not None:
            made.append(entry)
            objects += maker.objects
    return Converted(made, tuple(objects), tuple(notes))


def for_everybody(profiles: Iterable[Profile], dialect: Dialect, cluster: Cluster) -> Converted:
    """The same for a list that all users share.

    To show a profile to everybody that is for some would be to give it to them, so those are left
    out, too.
    """
    kept, notes = [], []
    for profile in profiles:
        if not profile.users and not profile.groups:
            kept.append(profile)
            continue
        who = [*(f"the user {name}" for name in sorted(profile.users))]
        who += [f"the group {name}" for name in sorted(profile.groups)]
        notes.append(
            f"{profile.slug}: it is for {listed(who)} only, which a list for everybody cannot say, "
            "so it is left out: profile_list_of() gives each user their own list."
        )
    made = convert(kept, dialect, cluster)
    return replace(made, notes=(*notes, *made.notes))


def written(converted: Converted, to: str, source: str) -> str:
    """As a file: ``values`` of Zero to JupyterHub, ``python``, or the ``objects``, as YAML."""
    lines = [f"Made from {source}.", *converted.notes]
    head = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    if to == "objects":
        return head + yaml.safe_dump_all(map(dict, converted.objects), sort_keys=False)
    if to == "python":
        made = pformat(converted.profile_list, sort_dicts=False, width=100)
        return f"{head}c.KubeSpawner.profile_list = {made}\n"
    values = {"singleuser": {"profileList": converted.profile_list}}
    return head + yaml.dump(values, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: one choice's resources are not another's, for who edits it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def profile_list_of(
    path: str | os.PathLike[str],
    dialect: str,
    settings: Mapping[str, Any] | None = None,
    gpus: Mapping[str, int | None] | None = None,
) -> Callable[[Any], list[dict[str, Any]]]:
    """A value for ``c.KubeSpawner.profile_list``: each user's own profiles, by name and group.

    :param path: a profiles.yaml. It is read and checked at once, and again at each start.
    :param dialect: the cluster's stack; ``settings`` are its settings.
    :param gpus: the label ``nvidia.com/gpu.product`` of the nodes, with the memory of one GPU in
        MiB or ``None``: what requests by model need, and fractions where the stack counts memory.

    Limits of the policies in that file are not kept: KubeSpawner has none.

    `ProfileError`, `SettingError` or ``OSError`` for what cannot be used; a user to whom no profile
    is given is refused, since KubeSpawner would start a server without any.
    """
    speaks = DIALECTS[dialect].of(settings or {})
    cluster = cluster_of(gpus or {})
    load_profiles(path)

    def profile_list(spawner: Any) -> list[dict[str, Any]]:
        from ..spawner import GpuSpawnError, declared

        groups = [group.name for group in spawner.user.groups]
        mine = declared(os.fspath(path), spawner.log).visible(spawner.user.name, groups)
        found = convert(mine, speaks, cluster).profile_list
        if not found:
            raise GpuSpawnError(
                403,
                "not_allowed",
                "No profile of this hub is for you.",
                "Ask the hub's administrators for access.",
            )
        return found

    return profile_list


class _Maker:
    """One profile's entry, with what came up on the way."""

    def __init__(self, profile: Profile, dialect: Dialect, cluster: Cluster) -> None:
        self.profile = profile
        self.dialect = dialect
        self.pod = PodContext(profile.slug, cluster=cluster)
        self.objects: list[Manifest] = []
        self.notes: list[str] = []

    def entry(self) -> dict[str, Any] | None:
        profile = self.profile
        choices = {
            str(choice.request): override
            for number, choice in enumerate(profile.choices)
            if (override := self._override(choice, number)) is not None
        }
        if not choices:
            self.notes.append("nothing of it can be had in this stack, so it is left out.")
            return None
        custom = self._custom()
        if profile.idle is not None:
            self.notes.append(f"that it ends after {profile.idle:g} s without use is not kept.")
        entry: dict[str, Any] = {
            "slug": profile.slug,
            "display_name": _no_markup(profile.display_name),
        }
        if profile.description:
            entry["description"] = _no_markup(profile.description)
        if profile.default:
            entry["default"] = True
        common = self._common()
        if len(choices) == 1 and custom is None:
            (override,) = choices.values()
            entry["kubespawner_override"] = _joined(common, override)
            return entry
        if common:
            entry["kubespawner_override"] = common
        option: dict[str, Any] = {"display_name": "GPU", "choices": self._choices(choices)}
        if custom is not None:
            option["unlisted_choice"] = custom
        entry["profile_options"] = {OPTION: option}
        return entry

    def _choices(self, overrides: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        chosen = str(self.profile.default_choice.request)
        made = {}
        for choice in self.profile.choices:
            key = str(choice.request)
            if key in overrides:
                made[key] = {
                    "display_name": _no_markup(choice.label),
                    **({"default": True} if key == chosen else {}),
                    "kubespawner_override": overrides[key],
                }
        return made

    def _common(self) -> dict[str, Any]:
        """What the profile says beside its requests."""
        found: dict[str, Any] = {}
        if self.profile.environment:
            # Our spawners do not fill anything in there.
            found["environment"] = _literal(dict(self.profile.environment))
        if self.profile.default_url:
            found["default_url"] = self.profile.default_url
        if self.profile.ttl is not None:
            found["extra_pod_config"] = {
                "activeDeadlineSeconds": max(1, round(self.profile.ttl)),
            }
        return found

    def _override(self, choice: Choice, number: int) -> dict[str, Any] | None:
        request = choice.request
        pod = replace(self.pod, name=f"gpuslice-{self.profile.slug}-{number}")
        try:
            patch = self.dialect.patch(request, pod)
        except CannotExpressError as error:
            self.notes.append(f"{request} is left out. {error.message} {error.hint}".strip())
            return None
        self.objects += [_anywhere(each) for each in patch.objects]
        if patch.claims and (note := _CLAIMS) not in self.notes:
            self.notes.append(note)
        return override(patch, request)

    def _custom(self) -> dict[str, Any] | None:
        """A field for requests of the users' own, where a template can say them all."""
        most = self.profile.custom_max
        if most is None:
            return None
        for family in families(most):
            template = self._template(family)
            if template is not None:
                return {
                    "enabled": True,
                    "display_name": family.label,
                    "display_name_in_choices": "Another amount",
                    # Python's $ also stands before a line's end.
                    "validation_regex": f"^(?:{family.pattern})$(?!\\n)",
                    "validation_message": f"From {family.text(1)} to {family.text(family.most)}.",
                    "kubespawner_override": template,
                }
        self.notes.append(
            f"requests of the users' own, up to {most}, are left out: a template can only put in "
            "what users write, and this stack wants it in other words."
        )
        return None

    def _template(self, family: Family) -> dict[str, Any] | None:
        """The override of all requests of a family, ``{value}`` for what users write; ``None`` if
        there is none: it is made of one request and held against the others."""
        try:
            said = {number: self._said(family, number) for number in probes(family.most)}
        except CannotExpressError:
            return None
        for number in sorted(said, reverse=True)[:4]:
            for change in _insertions(family.text(number)):
                template = _replaced(said[number], change)
                if all(_filled(template, family.text(n)) == each for n, each in said.items()):
                    # KubeSpawner formats it once more than other overrides.
                    made: dict[str, Any] = _replaced(_literal(said[number]), change)
                    return made
        return None

    def _said(self, family: Family, number: int) -> dict[str, Any]:
        text = family.request(number)
        request = GpuRequest.parse(text)
        patch = self.dialect.patch(request, self.pod)
        if patch.objects:
            raise CannotExpressError("An object beside the pod is not made from a template.")
        said = override(patch, request)
        if SHARE_VARIABLE in said.get("environment", {}):
            said["environment"][SHARE_VARIABLE] = text
        return said


_CLAIMS = (
    "the container's resources are these claims alone: say limits of memory and CPU in "
    "extra_container_config.resources, too, since KubeSpawner lets them replace its own."
)


def override(patch: PodPatch, request: GpuRequest) -> dict[str, Any]:
    """A patch as KubeSpawner's settings.

    KubeSpawner fills in ``{username}`` and the like, so braces that are meant are written twice.
    """
    found: dict[str, Any] = {}
    if patch.limits:
        found["extra_resource_limits"] = dict(patch.limits)
        found["extra_resource_guarantees"] = dict(patch.limits)
    if patch.labels:
        found["extra_labels"] = _literal(dict(patch.labels))
    if patch.annotations:
        found["extra_annotations"] = _literal(dict(patch.annotations))
    environment = {**patch.environment, **share_of(request, patch)}
    if environment:
        found["environment"] = _literal(environment)
    if patch.scheduler:
        found["scheduler_name"] = patch.scheduler
    if patch.nodes:
        rules = [rule.to_dict() for rule in patch.nodes]
        found["node_affinity_required"] = [{"matchExpressions": rules}]
    if patch.claims:
        found["extra_pod_config"] = {"resourceClaims": _literal([dict(c) for c in patch.claims])}
        uses = [{"name": claim["name"]} for claim in patch.claims]
        found["extra_container_config"] = {"resources": {"claims": uses}}
    return found


def _no_markup(text: str) -> str:
    """A text that is no markup where a page takes it for HTML, as KubeSpawner's does, and reads the
    same where it does not, as on that of jupyterhub-fancy-profiles."""
    return text.replace("<", "‹").replace(">", "›")


def _literal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("{", "{{").replace("}", "}}") if isinstance(value, str) else value


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, as KubeSpawner would apply one after the other."""
    found = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **value} if both else value
    return found


def _anywhere(manifest: Manifest) -> Manifest:
    """An object without its namespace, which is the servers' own."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}


def _insertions(text: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """``{value}`` in place of a text: where it stands alone, and wherever it stands."""
    return (
        lambda each: "{value}" if each == text else each,
        lambda each: each.replace(text, "{value}"),
    )


def _replaced(said: Any, change: Callable[[str], str]) -> Any:
    if isinstance(said, dict):
        return {key: _replaced(value, change) for key, value in said.items()}
    if isinstance(said, list):
        return [_replaced(value, change) for value in said]
    return change(said) if isinstance(said, str) else said


def _filled(template: Any, value: str) -> Any:
    return _replaced(template, lambda text: text.replace("{value}", value))
