"""Get: the addresses behind one port of a Service, as one client shall see them."""

from agent.core.discovery.answers import Ended, Endpoints, Pending, Subject
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.targets import Client, Target


def get(
    catalog: Catalog, config: Discovery, target: Target, client: Client
) -> tuple[Endpoints | Ended | Pending, frozenset[Subject]]:
    """The answer to Get, and the subjects on which it depends. Raises Invalid for an IP as target.

    Of the client only `node` matters. A Service that does not exist (yet) is `Endpoints(exists=False)`.
    """
    raise NotImplementedError
