"""What Ray Serve runs: replicas that hold the models, and a gateway that forwards requests to them.

Placement, health, restarts, draining, autoscaling and the choice of a replica are Ray's. Its
prefix-aware router is used, since the caches of a conversation stay on the replica that made them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.types import Message

from hierspec.errors import HierspecError
from hierspec.server.errors import ApiError
from hierspec.server.settings import ServeSettings
from hierspec.server.sources import load
from hierspec.utils.schema import validate_keys

from .calls import HttpRequest, forward, routing_prompt
from .ray import ray, ray_serve, start_memory

# A private module: the public one cannot be imported without vLLM or SGLang.
ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router."
    "PrefixCacheAffinityRouter"
)
REPLICA = "replica"
_MAX_REPLICAS = 4096
_MAX_IMBALANCE = 8  # requests by which a replica may exceed another, to reuse its caches


def num_replicas(replicas: int | None, autoscale: str | None) -> tuple[int, int]:
    """Return the least and the most replicas of ``--replicas N`` or ``--autoscale MIN:MAX``.

    If they differ, the load decides; one replica by default.

    Raises:
        HierspecError: both are given, or the bounds are invalid.
    """
    if autoscale is None:
        return replicas or 1, replicas or 1
    if replicas is not None:
        raise HierspecError("--replicas fixes the number, --autoscale varies it: give one of them")
    match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", autoscale)
    if not match or not 0 < int(match[1]) <= int(match[2]) <= _MAX_REPLICAS:
        raise HierspecError(f"--autoscale takes MIN:MAX, as 1:4, not {autoscale!r}")
    return int(match[1]), int(match[2])


class Replica:
    """A process with the models in it: the same application as ``hierspec serve``."""

    def __init__(self, settings_fields: Mapping[str, Any]) -> None:
        from hierspec.server.app import create_app
        from hierspec.utils.threads import use_threads

        settings = ServeSettings(**settings_fields)
        use_threads(settings.threads)
        self.app = create_app(settings)
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.started = asyncio.ensure_future(self.lifespan.__aenter__())

    async def answer(self, request: HttpRequest) -> AsyncGenerator[Message, None]:
        """Yield the messages of an answer as they come; closing the iterator ends the request.

        Source: the ASGI specification, version 3.0 (HTTP connection scope).
        """
        await asyncio.shield(self.started)
        received, sent = asyncio.Queue[Message](), asyncio.Queue[Message | None]()
        received.put_nowait({"type": "http.request", "body": request.body})
        task = asyncio.ensure_future(self.app(request.scope, received.get, sent.put))
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                yield message
            await task  # raises what the application raised
        finally:
            task.cancel()

    async def check_health(self) -> None:
        """Raise an error if the engine has ended or is stuck: Ray then replaces the replica."""
        await asyncio.shield(self.started)
        engine = self.app.state.service.engine
        if problem := engine.problem or (
            None if engine.accepts_requests else "the engine has ended"
        ):
            raise RuntimeError(problem)


class Gateway:
    """Forwards requests of clients to replicas, and their answers back."""

    def __init__(self, replicas: Any, max_body: int) -> None:
        start_memory(ray_serve().get_replica_context().app_name, REPLICA)
        self.replicas, self.max_body = replicas.options(stream=True), max_body
        exceptions = ray().exceptions
        self.lost = (exceptions.RayActorError, exceptions.WorkerCrashedError)
        self.full = (ray_serve().exceptions.BackPressureError,)

    async def __call__(self, request: Any) -> Any:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > self.max_body:
                break
        if len(body) > self.max_body:
            message = f"the body is longer than {self.max_body} bytes"
            return ApiError(message, 413, code="body_too_large").response()
        forwarded = HttpRequest(request.scope, body, routing_prompt(request.url.path, body))
        return await forward(forwarded, self._send, self.lost, self.full)

    async def _send(self, request: HttpRequest) -> AsyncGenerator[Message, None]:
        messages = self.replicas.answer.remote(request)
        try:
            async for message in messages:
                yield message
        finally:
            messages.cancel()


def application(
    settings: ServeSettings, bounds: tuple[int, int], resources: Mapping[str, Any]
) -> Any:
    """Build the deployments: a gateway bound to the replicas, whose number has these bounds."""
    serve = ray_serve()
    from ray.serve.config import RequestRouterConfig  # type: ignore[import-not-found]

    least, most = bounds
    autoscaling = {
        "min_replicas": least,
        "max_replicas": most,
        "target_ongoing_requests": max(1, settings.max_num_seqs // 2),
    }
    replica = serve.deployment(
        Replica,
        name=REPLICA,
        **({"autoscaling_config": autoscaling} if least != most else {"num_replicas": least}),
        max_ongoing_requests=settings.max_num_seqs + settings.max_queue,
        max_queued_requests=settings.max_queue,
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=settings.shutdown_grace + 5,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options=dict(resources),
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"imbalanced_threshold": _MAX_IMBALANCE},
        ),
    )
    gateway = serve.deployment(
        Gateway,
        name="gateway",
        num_replicas=1,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=settings.shutdown_grace + 10,
        ray_actor_options={"num_cpus": 0},
    )
    return gateway.bind(replica.bind(dataclasses.asdict(settings)), settings.max_body_bytes)


def build(args: Mapping[str, Any]) -> Any:
    """Build from a Serve config file (``import_path: hierspec.server.cluster.deployments:build``).

    Args:
        args: ``settings`` (as a settings file has them; the environment adds to them),
            ``replicas`` or ``autoscale`` (``"1:4"``), ``resources`` of a replica.

    Raises:
        HierspecError: an unknown key or a wrong value.
    """
    validate_keys(args, ["settings", "replicas", "autoscale", "resources"], "args")
    replicas = args.get("replicas")
    if replicas is not None and not isinstance(replicas, int):
        raise HierspecError(f"args: replicas is a number, not {replicas!r}")
    bounds = num_replicas(replicas, args.get("autoscale"))
    settings = load(options=args.get("settings", {}))  # API keys come from the environment
    return application(settings, bounds, args.get("resources", {}))
