"""Checks against the Hub: this machine's clock and its token."""

from __future__ import annotations

from typing import Final

from glm53_exl3.probes.catalogue import CLOCK, TOKEN
from glm53_exl3.probes.host import HeadReply, HubIdentity
from glm53_exl3.probes.result import CheckResult

#: Certificates and signed download links are valid for a time; links of the Hub for about an hour.
_LARGE_SKEW_SECONDS: Final = 300.0
_SMALL_SKEW_SECONDS: Final = 30.0
_SET_CLOCK: Final = "sudo timedatectl set-ntp true"


def check_clock(reply: HeadReply) -> CheckResult:
    """A wrong clock breaks TLS and signed links with messages that do not mention it."""
    if reply.error:
        if "certificate is not yet valid" in reply.error or "certificate has expired" in reply.error:
            return CLOCK.fail(f"the Hub's certificate is not valid at this machine's time: {reply.error}", _SET_CLOCK)
        return CLOCK.skip(f"the Hub does not answer: {reply.error}")
    if reply.server_time is None:
        return CLOCK.skip("the Hub's answer has no date")
    skew = reply.local_time - reply.server_time
    measured = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the Hub"
    if abs(skew) <= _SMALL_SKEW_SECONDS:
        return CLOCK.ok(measured)
    return (CLOCK.fail if abs(skew) > _LARGE_SKEW_SECONDS else CLOCK.warn)(measured, _SET_CLOCK)


def check_token(identity: HubIdentity) -> CheckResult:
    """None is fine, as the packs are public; one that the Hub refuses makes even public files fail."""
    if identity.error:
        return TOKEN.skip(f"the Hub could not be asked: {identity.error}")
    if not identity.source:
        return TOKEN.ok("none, public packs need none")
    if identity.refused:
        forget = f"unset {identity.source}" if identity.source.isupper() else "hf auth logout"
        return TOKEN.fail(f"the Hub refuses the token of {identity.source}", f"hf auth login, or go without: {forget}")
    return TOKEN.ok(f"of {identity.user}, from {identity.source}")
