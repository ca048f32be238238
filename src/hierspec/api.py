"""``Hierarchy``: models wired into a hierarchy, and the ways to generate with it."""

from __future__ import annotations

import inspect
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hierspec.config import arguments
from hierspec.config.build import Built, build
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.engine.control import Controller
from hierspec.engine.generation import Generation
from hierspec.engine.results import GenerationResult, TokenEvent
from hierspec.engine.stopping import StopConditions
from hierspec.engine.streamers import streamed
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.prompts import apply_chat
from hierspec.utils.schema import closed
from hierspec.verifiers.soundness import check as check_soundness

Prompt = str | Sequence[int]


class Hierarchy:
    """A target model and the levels that draft for it.

    ``controller`` (``None``: every round runs the whole hierarchy as configured) chooses levels
    and budgets before each round: :class:`hierspec.planner.online.controller.OnlineController`.

    Safe to call from several threads: rounds of different calls take turns.

    >>> import hierspec
    >>> fast = hierspec.Hierarchy.from_preset("hierarchy")          # the shipped family
    >>> result = fast.generate("def add(a, b):", max_new_tokens=32)
    >>> result.num_tokens
    32
    """

    def __init__(self, built: Built, controller: Controller | None = None) -> None:
        self.config = built.config
        self.tokenizer = built.tokenizer
        self.root = built.root
        self.controller = controller
        self.lock = threading.Lock()

    @classmethod
    def from_config(cls, config: HierarchyConfig | Mapping[str, Any] | str | Path) -> Hierarchy:
        """Load a hierarchy file (path, inline JSON or mapping), or a preset by its name.

        Raises:
            ValueError: with what is wrong and how to mend it.
        """
        from hierspec.presets.registry import AUTO, PRESETS

        if isinstance(config, str) and config in (*PRESETS, AUTO):
            return cls.from_preset(config)
        if not isinstance(config, HierarchyConfig):
            config = HierarchyConfig.load(config)
        return cls(build(config))

    @classmethod
    def from_preset(cls, name: str, **models: Any) -> Hierarchy:
        """A preset by name; ``target=`` and ``drafts=`` (smallest first) replace the zoo.

        ``auto`` takes the options of :meth:`auto`.
        """
        from hierspec.presets.registry import AUTO, preset

        if name == AUTO:
            known = ["target", "drafts", "temperature", "online", "report"]
            return cls.auto(**closed(models, known, "options"))
        return cls.from_config(preset(name, **closed(models, ["target", "drafts"], "options")))

    @classmethod
    def auto(
        cls,
        target: TargetConfig | str | None = None,
        drafts: str | Sequence[str] = (),
        *,
        temperature: float = 0.0,
        online: bool = True,
        report: Callable[[str, float], None] = lambda stage, share: None,
    ) -> Hierarchy:
        """The fastest hierarchy of these models on this machine, as the planner finds it.

        The first use measures the models, for a minute or so, and keeps the profile in the user's
        cache; later ones only plan.

        Args:
            target: default: the shipped ``zoo:large``.
            drafts: candidates, as ``hierspec profile --candidates`` takes them; default: the
                shipped family, or prompt lookup for any other target.
            temperature: of the requests to come: acceptance depends on it. 0 is greedy.
            online: let budgets and levels follow the text
            (:mod:`hierspec.planner.online.controller`).
            report: told what is being measured, and the share of it that is done.
        """
        from hierspec.planner.online.controller import OnlineController
        from hierspec.profiling.auto import choose

        found = choose(
            arguments.target(target),
            arguments.model_names(drafts, "drafts"),
            temperature=temperature,
            report=report,
        )
        built, chain = build(found.config, found.loaded), found.plan.best.chain
        if not online or chain.plain:
            return cls(built)
        estimates = found.plan.estimates
        return cls(built, OnlineController(built.root, estimates, chain))

    def generate(self, prompt: Prompt, **options: Any) -> GenerationResult:
        """Continue one prompt; the options are those of :meth:`start`."""
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(self, prompts: Iterable[Prompt], **options: Any) -> list[GenerationResult]:
        """Continue several prompts together; each has its own randomness (seed, place).

        ``streamer``: one of transformers' streamers, for a single prompt.
        """
        streamer = options.pop("streamer", None)
        generation = self.start(prompts, **options)
        events = iter(generation)
        if streamer is not None:
            events = streamed(events, streamer, generation.streams[0].sequence.tokens)
        for _ in events:
            pass
        return generation.results()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[TokenEvent]:
        """Continue one prompt, an event a token. Abandoning the iterator frees everything."""
        return iter(self.start([prompt], **options))

    def start(
        self,
        prompts: Iterable[Prompt],
        *,
        max_new_tokens: int = 128,
        seed: int | None = None,
        stop: str | Iterable[str] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        ignore_eos: bool = False,
        include_stop_str: bool = False,
        chat: bool = False,
        logprobs: bool = False,
        until: Callable[[int, Sequence[int]], bool] | None = None,
        tracer: Any = None,
        sampling: SamplingParams | Sequence[SamplingParams] | Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Generation:
        """A batch ready to run: iterate it for events, then ask ``results()``.

        Args:
            prompts: texts, or token ids: lists, or one-dimensional tensors.
            max_new_tokens: per sequence; the context length may end it sooner.
            seed: of all randomness, below 2**64; drawn afresh (and reported) where ``None``.
            stop: texts that end the output where they appear; they are left out of ``text``.
            eos_token_id: ends the output; default: the tokenizer's and the model's.
            chat: apply the tokenizer's chat template to each prompt.
            logprobs: report the raw target's log-probability of every emitted token.
            until: called ``until(sequence, tokens so far)`` after every token; true ends it.
            tracer: gets an event for every request and verdict.
            sampling: for all, or one for each prompt; or its fields one by one: ``temperature``
                (0: greedy), ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``,
                ``frequency_penalty``, ``presence_penalty``, ``logit_bias``,
                ``logits_processors``.

        Raises:
            ValueError: an empty prompt, one longer than the context, a rule that would change the
                output law, a parameter out of range.
        """
        prompts = arguments.prompt_list(prompts)
        each = _for_each(arguments.sampling_params(sampling, params, _OPTIONS), len(prompts))
        greedy = all(one.greedy for one in each)
        plans = [self.root] if self.controller is None else self.controller.plans
        for plan in plans:
            check_soundness(plan, greedy=greedy, allow_lossy=self.config.allow_lossy)
        if max_new_tokens is not None:
            max_new_tokens = arguments.whole(max_new_tokens, "max_new_tokens")
        conditions = StopConditions(
            eos_token_ids=self.eos_token_ids(eos_token_id),
            ignore_eos=ignore_eos,
            stop=arguments.stop_strings(stop),
            max_new_tokens=max_new_tokens,
            max_length=self.root.model.max_length,
            include_stop_str=include_stop_str,
        )
        chosen = arguments.seed(seed)
        return Generation(
            self.root,
            [self._ids(prompt, chat) for prompt in prompts],
            tokenizer=self.tokenizer,
            params=each,
            stop=conditions,
            seed=secrets.randbits(32) if chosen is None else chosen,
            want_logprobs=logprobs,
            lock=self.lock,
            until=until,
            tracer=tracer,
            controller=self.controller,
        )

    def eos_token_ids(self, chosen: int | Sequence[int] | None = None) -> frozenset[int]:
        """What ends a text: the caller's ids, or the model's and the tokenizer's."""
        if chosen is not None:
            return arguments.eos_ids(chosen)
        found = [
            getattr(self.root.model, "eos_token_id", None),
            getattr(self.tokenizer, "eos_token_id", None),
        ]
        ids: set[int] = set()
        for value in found:
            if isinstance(value, int):
                ids.add(value)
            elif value is not None:
                ids.update(value)
        return frozenset(ids)

    def _ids(self, prompt: Prompt, chat: bool) -> list[int]:
        if not isinstance(prompt, str):
            ids = arguments.token_ids(prompt)
        elif self.tokenizer is None:
            raise HierspecError("the target has no tokenizer beside it: give token ids, not text")
        elif chat:
            ids = apply_chat(self.tokenizer, prompt)
        else:
            ids = self.tokenizer(prompt, verbose=False)["input_ids"]  # its length is checked here
        vocab, longest = self.root.model.vocab_size, self.root.model.max_length
        if not ids:
            raise HierspecError("the prompt is empty: give at least one token to continue")
        if min(ids) < 0 or max(ids) >= vocab:
            raise HierspecError(f"a prompt token lies outside the target's vocabulary of {vocab}")
        if len(ids) >= longest:
            raise HierspecError(
                f"the prompt has {len(ids)} tokens and the target's context holds {longest}: "
                "shorten it to leave room for output"
            )
        return ids


def _for_each(sampling: Any, num_prompts: int) -> list[SamplingParams]:
    """One set of parameters for every prompt."""
    if isinstance(sampling, SamplingParams):
        return [sampling] * num_prompts
    if len(sampling) != num_prompts:
        raise HierspecError(f"sampling has {len(sampling)} entries for {num_prompts} prompts")
    return list(sampling)


_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(Hierarchy.start).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
