"""GetProfile: of a Service by name or ClusterIP, or of one endpoint by IP or pod DNS name."""

from collections.abc import Iterator

from agent.core.discovery import objects
from agent.core.discovery.addresses import Place, plain_address, pod_address, workload_address
from agent.core.discovery.answers import (
    Address,
    Ended,
    Lack,
    Override,
    Profile,
    Ref,
    RetryBudget,
    Subject,
    Twofold,
)
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.endpoints import slices_of
from agent.core.discovery.opacity import Opacity, opaque_service, opaque_unknown
from agent.core.discovery.pods import PodFacts
from agent.core.discovery.serviceprofiles import ProfileFacts
from agent.core.discovery.services import ServiceFacts
from agent.core.discovery.slices import POD, WORKLOAD
from agent.core.discovery.tables import Name
from agent.core.discovery.targets import AddressTarget, Client, ServiceTarget, Target, split_host_port
from agent.core.objects import Namespace, Object, Pod, Service
from agent.core.reasons import Complaint, Reason

Value = Profile | Ended | Twofold

_BUDGET = RetryBudget()


def profile(
    catalog: Catalog, config: Discovery, target: Target, client: Client
) -> tuple[Profile | Ended | Twofold, frozenset[Subject]]:
    """The answer to GetProfile, and the subjects on which it depends. Never raises.

    Of the client only `namespace` matters. A name that does not exist (yet) is the empty `Profile()`; of a
    Service that was deleted, open streams keep the profile.
    """
    asking = _Asking(catalog, config, client)
    if unlisted := catalog.unlisted(*_kinds(config)):
        subjects = (Subject("listing", lack.name) for lack in unlisted)
        return Twofold(lacking=unlisted), frozenset(subjects)
    if isinstance(target, AddressTarget):
        value = asking.by_address(target.ip, target.port)
    elif target.hostname:
        value = asking.by_hostname(target)
    else:
        value = asking.by_name((target.namespace, target.service), target.port)
    return value, frozenset(asking.subjects)


def _kinds(config: Discovery) -> Iterator[type[Object]]:
    yield from (Service, Namespace, Pod, objects.Server, objects.ExternalWorkload, objects.ServiceProfile)
    yield objects.EndpointSlice if config.endpoint_slices else objects.Endpoints


class _Asking:
    """One question while it is answered; `subjects` collects what the answer depends on."""

    def __init__(self, catalog: Catalog, config: Discovery, client: Client) -> None:
        self.catalog = catalog
        self.config = config
        self.client = client
        self.subjects: set[Subject] = set()

    def by_address(self, ip: str, port: int) -> Value:
        """A cluster IP is its Service; any other is an endpoint, or was a Service's when a stream began."""
        self.subjects.add(Subject("address", ip))
        services = self.catalog.services
        claiming = services.by_ip[ip]
        if len(claiming) > 1:
            names = " and ".join(f"{space}/{name}" for space, name in sorted(claiming))
            return Ended(f"cannot tell whose {ip} is: Services {names} claim it", "FAILED_PRECONDITION")
        if claiming:
            return self.by_name(next(iter(claiming)), port)
        value = self.endpoint(ip, port)
        departed = services.departed_from(ip)
        if departed is None or not isinstance(value, Profile) or self.known(value):
            return value
        later = self.by_name(departed, port)
        return Twofold(first=value, later=later.later if isinstance(later, Twofold) else None)

    def by_name(self, key: Name, port: int) -> Value:
        """A Service by name; if it has been deleted, a new stream gets the empty profile."""
        self.subjects.add(Subject("service", key[1], key[0]))
        service = self.catalog.services.of.get(key)
        departed = self.catalog.services.departed.get(key)
        if service is None and departed is None:
            return Profile()
        found = service or departed
        assert found is not None
        if found.port(port) is None:
            return Profile()
        if found.external:
            return Ended(f"cannot answer for Service {key[0]}/{key[1]}: it is an ExternalName")
        value = self.of_service(found, port)
        if service is not None:
            return value
        return Twofold(first=Profile(), later=value if isinstance(value, Profile) else None)
