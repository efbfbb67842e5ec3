"""GetProfile: of a Service by name or cluster IP, or of one endpoint by IP or pod DNS name."""

from collections.abc import Iterator

from agent.core.discovery import objects
from agent.core.discovery.answers import Ended, Override, Profile, Ref, RetryBudget, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.direct import at_address, bare, by_hostname
from agent.core.discovery.opacity import opaque_service
from agent.core.discovery.services import ServiceFacts
from agent.core.discovery.tables import Name
from agent.core.discovery.targets import AddressTarget, Client, Target, split_host_port
from agent.core.objects import Namespace, Object, Pod, Service

Value = Profile | Ended | Twofold


def profile(
    catalog: Catalog, config: Discovery, target: Target, client: Client
) -> tuple[Value, frozenset[Subject]]:
    """The answer to GetProfile, and the subjects on which it depends. Never raises.

    Of the client only `namespace` matters. A name that does not exist (yet) is the empty `Profile()`; of a
    Service that was deleted, open streams keep a profile.
    """
    if unlisted := catalog.unlisted(*_kinds(config)):
        listings = (Subject("listing", lack.name) for lack in unlisted)
        return Twofold(lacking=unlisted), frozenset(listings)
    subjects: set[Subject] = set()
    if isinstance(target, AddressTarget):
        value = _by_ip(catalog, config, target, client, subjects)
    elif target.hostname:
        subjects.add(Subject("service", target.service, target.namespace))
        found = by_hostname(catalog, config, target)
        if isinstance(found, str):
            subjects.add(Subject("address", found))
            found = _endpoint(catalog, config, found, target.port)
        value = found
    else:
        value = _by_name(catalog, config, (target.namespace, target.service), target.port, client, subjects)
    return value, frozenset(subjects)


def _kinds(config: Discovery) -> Iterator[type[Object]]:
    yield from (Service, Namespace, Pod, objects.Server, objects.ExternalWorkload, objects.ServiceProfile)
    yield objects.EndpointSlice if config.endpoint_slices else objects.Endpoints


def _endpoint(catalog: Catalog, config: Discovery, ip: str, port: int) -> Profile | Twofold:
    return at_address(catalog, config, ip, port) or bare(config, ip, port)


def _by_ip(
    catalog: Catalog, config: Discovery, target: AddressTarget, client: Client, subjects: set[Subject]
) -> Value:
    """A cluster IP is its Service. What was one when a stream began stays one for it, until somebody else is
    known to be there."""
    ip, port = target.ip, target.port
    subjects.add(Subject("address", ip))
    claiming = catalog.services.by_ip[ip]
    if len(claiming) > 1:
        names = " and ".join(f"{space}/{name}" for space, name in sorted(claiming))
        return Ended(f"cannot tell whose {ip} is: Services {names} claim it", "FAILED_PRECONDITION")
    for key in claiming:
        return _by_name(catalog, config, key, port, client, subjects)
    found = at_address(catalog, config, ip, port)
    departed = catalog.services.departed_from(ip)
    if found is not None or departed is None:
        return found or bare(config, ip, port)
    was = _by_name(catalog, config, departed, port, client, subjects)
    return Twofold(bare(config, ip, port), was.later if isinstance(was, Twofold) else None)


def _by_name(
    catalog: Catalog, config: Discovery, key: Name, port: int, client: Client, subjects: set[Subject]
) -> Value:
    subjects.add(Subject("service", key[1], key[0]))
    service = catalog.services.of.get(key)
    if service is not None:
        return _of_service(catalog, config, service, port, client)
    departed = catalog.services.departed.get(key)
    if departed is None:
        return Profile()
    was = _of_service(catalog, config, departed, port, client)
    return Twofold(Profile(), was if isinstance(was, Profile) else None)


def _of_service(
    catalog: Catalog, config: Discovery, service: ServiceFacts, port: int, client: Client
) -> Value:
    if service.port(port) is None:
        return Profile()
    if service.external:
        where = f"{service.namespace}/{service.name}"
        return Ended(f"cannot answer for Service {where}: it is an ExternalName")
    name = f"{service.name}.{service.namespace}.svc.{config.cluster_domain}"
    opaque, rule = opaque_service(catalog, config, service, port)
    default = Profile(
        name=name,
        opaque=opaque,
        rule=rule,
        retry_budget=RetryBudget(),
        parent=Ref("core", "Service", service.name, service.namespace, port),
    )
    facts = catalog.profiles.of.get((client.namespace, name))
    facts = facts or catalog.profiles.of.get((service.namespace, name))
    if facts is None:
        return default
    if facts.broken:
        return Twofold(default, None)
    return Profile(
        name=name,
        opaque=opaque,
        rule=rule,
        routes=facts.routes,
        retry_budget=facts.retry_budget or RetryBudget(),
        overrides=tuple(Override(_with_port(text, port), weight) for text, weight in facts.overrides),
        parent=default.parent,
        source=Ref("linkerd.io", "ServiceProfile", name, facts.namespace),
    )


def _with_port(authority: str, port: int) -> str:
    if split_host_port(authority) is not None:
        return authority
    return f"[{authority}]:{port}" if ":" in authority else f"{authority}:{port}"
