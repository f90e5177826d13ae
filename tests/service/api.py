"""A client of the service for tests: a decision is an object with the fields of the response."""

import uuid
from types import SimpleNamespace

import httpx


class Api(httpx.Client):
    """Ask for decisions and report rewards over HTTP."""

    def __init__(self, address, token="", reward_token=None, timeout=30.0):
        transport = httpx.HTTPTransport(retries=8)
        super().__init__(base_url=address, timeout=timeout, transport=transport)
        self.token = token
        self.reward_token = token if reward_token is None else reward_token

    def decide(self, context, **fields):
        """Return the decision on one context."""
        event = {"context": context, "event_id": uuid.uuid4().hex, **fields}
        return SimpleNamespace(**self.post_with("/decide", event, self.token))

    def decide_many(self, events):
        """Return the decisions on events."""
        answer = self.post_with("/decide", {"events": list(events)}, self.token)
        return [SimpleNamespace(**decision) for decision in answer["events"]]

    def reward(self, event_id, reward):
        """Record a reward."""
        return self.post_with(
            f"/events/{event_id}/reward", {"reward": float(reward)}, self.reward_token
        )

    def post_with(self, path, content, token):
        """Return the response to a POST request; an error status raises httpx.HTTPStatusError."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.post(path, json=content, headers=headers).raise_for_status().json()
