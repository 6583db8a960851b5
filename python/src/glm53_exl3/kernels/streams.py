"""Streams that share the memory of a launch take turns."""

from __future__ import annotations

import torch


class Turns:
    """The stream of each device that launched last.

    It does not see the replay of a graph: replay on the stream that also launches, as vLLM does.
    """

    def __init__(self) -> None:
        self.last: dict[torch.device, torch.cuda.Stream] = {}

    def enter(self, device: torch.device) -> None:
        """Make the current stream wait for the one that launched last.

        While a graph is captured nothing runs, and a wait for work outside it could not be recorded.
        """
        if torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream(device)
        last = self.last.get(device)
        # torch finds a stream neither equal to None nor different from it.
        if last is not None:
            if last == current:
                return
            current.wait_stream(last)
        self.last[device] = current
