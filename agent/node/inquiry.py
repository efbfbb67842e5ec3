"""Questions about one pod that somebody waits for, asked between two rounds of its keeper."""

from agent.core.reasons import Reason
from agent.node.keeper import Keeper
from agent.node.kernel import Kernel
from agent.node.leftovers import Leftover
from agent.node.trial import Trial


async def trial(keeper: Keeper, kernel: Kernel) -> Trial:
    """Whether a connection made inside the pod now is redirected. Raises OSError, NftError."""
    async with keeper.busy:
        if keeper.hold is None or keeper.spec is None or keeper.status.reason is not Reason.REDIRECTED:
            return Trial("unverifiable", f"the pod is not redirected by us: {keeper.status.reason}")
        tried = await kernel.trial(keeper.hold, keeper.spec)
        # News of others' changes may have been read along with the answers.
        keeper.wake()
        return tried


async def leftovers(keeper: Keeper, kernel: Kernel) -> tuple[Leftover, ...]:
    """What linkerd-init left in the pod's netns, () while that is not held. Raises NftError."""
    async with keeper.busy:
        if keeper.hold is None:
            return ()
        found = await kernel.leftovers(keeper.hold)
        keeper.wake()
        return found


async def addresses(keeper: Keeper, kernel: Kernel) -> tuple[str, ...]:
    """All addresses of the pod's netns, () while that is not held. Raises OSError."""
    async with keeper.busy:
        return await kernel.addresses(keeper.hold) if keeper.hold is not None else ()
