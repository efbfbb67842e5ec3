"""GetProfile: of a Service by name or ClusterIP, or of one endpoint by IP or pod DNS name."""

from agent.core.discovery.answers import Ended, Pending, Profile, Subject
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.targets import Client, Target


def profile(
    catalog: Catalog, config: Discovery, target: Target, client: Client
) -> tuple[Profile | Ended | Pending, frozenset[Subject]]:
    """The answer to GetProfile, and the subjects on which it depends. Never raises.

    Of the client only `namespace` matters. A name that does not exist (yet) is the empty `Profile()`.
    """
    raise NotImplementedError
