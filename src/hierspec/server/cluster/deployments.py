"""What Ray Serve runs: replicas that hold the models, and a gateway that asks them.

Placement, health, restarts, draining, autoscaling and the choice of a replica are Ray's; replicas
are chosen by its prefix-aware router, since the caches of a conversation stay where they were made.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from hierspec.errors import HierspecError
from hierspec.server.batch.inprocess import InProcess
from hierspec.server.settings import ServeSettings, load
from hierspec.utils.schema import check_keys

from . import memory
from .calls import HttpRequest, HttpStart, Losses, Part, forward, headers_of, prefix_of, refusal
from .ray import ray, ray_serve
from .scale import Scale

# Ray's own class; the place where Ray shows it in public cannot be imported without vLLM or SGLang.
ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router."
    "PrefixCacheAffinityRouter"
)
REPLICA = "replica"
_BUSY = 8  # requests by which one replica may be ahead of another, for a prefix's sake


class Replica:
    """A process with the models in it: the same application as ``hierspec serve``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        from hierspec.server.app import create_app
        from hierspec.utils.threads import use_threads

        settings = ServeSettings(**values)
        use_threads(settings.threads)
        self.app = create_app(settings)
        self.service: InProcess | None = None
        self.starting = asyncio.Lock()

    async def answer(self, call: HttpRequest) -> AsyncGenerator[Part, None]:
        service = await self._started()
        messages = service.call(call.method, call.path, call.headers, call.body, call.query)
        async for message in messages:
            if message["type"] == "http.response.start":
                yield HttpStart(message["status"], tuple(message.get("headers", ())))
            elif message.get("body"):
                yield message["body"]

    async def check_health(self) -> None:
        """Raise where the engine has ended: Ray then puts another replica in its place."""
        await self._started()
        if not self.app.state.service.engine.alive:
            raise RuntimeError("the engine has ended")

    async def _started(self) -> InProcess:
        async with self.starting:
            if self.service is None:
                self.service = await InProcess(self.app).__aenter__()
        return self.service


class Gateway:
    """Takes requests from clients and has replicas answer them."""

    def __init__(self, replicas: Any, max_body: int) -> None:
        memory.keep(ray_serve().get_replica_context().app_name, REPLICA)
        self.replicas, self.max_body = replicas.options(stream=True), max_body
        errors, full = ray().exceptions, ray_serve().exceptions.BackPressureError
        self.losses = Losses((errors.RayActorError, errors.WorkerCrashedError), (full,))

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > self.max_body:
                break
        if len(body) > self.max_body:
            message = f"the body is longer than {self.max_body} bytes"
            reply = refusal(413, message, code="body_too_large")
        else:
            path = request.url.path
            call = HttpRequest(
                method=request.method,
                path=path,
                query=request.url.query.encode(),
                headers=headers_of(request.headers.raw),
                body=body,
                prompt=prefix_of(path, body),
            )
            reply = await forward(call, self._ask, self.losses)
        answer = StreamingResponse(reply.body, reply.status)
        answer.raw_headers = list(reply.headers)
        return answer

    async def _ask(self, call: HttpRequest) -> AsyncGenerator[Part, None]:
        found = self.replicas.answer.remote(call)
        try:
            async for part in found:
                yield part
        finally:
            found.cancel()


def application(settings: ServeSettings, scale: Scale, resources: Mapping[str, Any]) -> Any:
    """Build the deployments, bound to each other.

    Args:
        resources: of a replica, in Ray's words: ``num_cpus``, ``num_gpus``, ….
    """
    serve = ray_serve()
    from ray.serve.config import RequestRouterConfig  # type: ignore[import-not-found]

    replica = serve.deployment(
        Replica,
        name=REPLICA,
        **scale.options(wanted=max(1, settings.max_num_seqs // 2)),
        max_ongoing_requests=settings.max_num_seqs + settings.max_queue,
        max_queued_requests=settings.max_queue,
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=settings.shutdown_grace + 5,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options=dict(resources),
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"imbalanced_threshold": _BUSY},
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
    values = dataclasses.asdict(settings)
    return gateway.bind(replica.bind(values), settings.max_body_bytes)


def build(args: Mapping[str, Any]) -> Any:
    """Build from a Serve config file (``import_path: hierspec.server.cluster.deployments:build``).

    Args:
        args: ``settings`` (as a settings file has them; the environment adds to them),
            ``replicas`` or ``autoscale`` (``"1:4"``), ``resources`` of a replica.

    Raises:
        HierspecError: an unknown key or a wrong value.
    """
    known = ["settings", "replicas", "autoscale", "resources"]
    given = check_keys(dict(args), known, "args")
    replicas = given.get("replicas")
    if replicas is not None and not isinstance(replicas, int):
        raise HierspecError(f"args: replicas is a number, not {replicas!r}")
    scale = Scale.of(replicas, given.get("autoscale"))
    settings = load(options=given.get("settings", {}))  # keys come from the environment
    return application(settings, scale, given.get("resources", {}))
