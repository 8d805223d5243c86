"""Executes one step: prompt, place, attempt, close. The caller holds the workflow's turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from paceline.engines.base import GenerateRequest
from paceline.errors import (
    ContextTooLong,
    EngineRefused,
    LedgerUnavailable,
    ModelNotFound,
    PacelineError,
    ShuttingDown,
    StepNotFound,
    TranscriptGone,
)
from paceline.routing.pools import PoolChoice
from paceline.transcript.chat import ChatModel
from paceline.transcript.fingerprint import Keyed
from paceline.workflow import outcome
from paceline.workflow.answerform import AnswerForm, callable_tools, form_of
from paceline.workflow.attempt import Attempt, utcnow
from paceline.workflow.closing import Closer, to_the_end
from paceline.workflow.commands import Conversation
from paceline.workflow.events import Event, Phase
from paceline.workflow.identity import cache_salt, new_id
from paceline.workflow.model import Sampling, Step, StepState, StorePolicy, Usage, Workflow
from paceline.workflow.pooling import PoolRouter, settled
from paceline.workflow.ports import AttemptEnd, Ledger, NewAttempt, Observer, Prices, Reservation, StepReport
from paceline.workflow.prompts import Prompt, Prompts
from paceline.workflow.replicas import Replica, Replicas, Waiting
from paceline.workflow.run import StepRun
from paceline.workflow.stepclass import classify
from paceline.workflow.storing import Unstored, stored_end, stored_step


@dataclass(frozen=True, slots=True)
class Served:
    """A model that clients can name."""

    name: str
    chat: ChatModel
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(slots=True)
class _Job:
    """One execution on its way: what is durable so far decides how it has to be closed."""

    run: StepRun
    step: Step
    served: Served
    prompt: Prompt
    form: AnswerForm | None
    store: StorePolicy
    stored: bool = False
    attempt: Attempt | None = None
    closed: bool = False


class Dispatcher:
    """Everything that a step needs on its way to an engine and back."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        closer: Closer,
        prompts: Prompts,
        unstored: Unstored,
        replicas: Replicas,
        pools: PoolRouter,
        models: Mapping[str, Served],
        prices: Prices,
        observers: tuple[Observer, ...],
        runtime_id: str,
    ) -> None:
        self._ledger = ledger
        self._closer = closer
        self._prompts = prompts
        self._unstored = unstored
        self._replicas = replicas
        self._pools = pools
        self._models = models
        self._prices = prices
        self._observers = observers
        self._runtime_id = runtime_id
        self._attempts: dict[str, Attempt] = {}

    async def execute(self, run: StepRun, workflow: Workflow, stored: Step | None) -> None:
        """Run the step to its end; its rows are closed on every way out. Raises what went wrong."""
        if workflow.model not in self._models:
            raise ModelNotFound(f"model {workflow.model} is no longer configured", model=workflow.model)
        served = self._models[workflow.model]
        if stored:
            _check_repeatable(stored, workflow)
        workflow = self._unstored.fill(workflow)
        prompt = await self._prompt(run, workflow, served.chat, stored)
        _room(prompt, self._replicas.context_limit(served.name), None)
        form = await form_of(run.command, prompt.tools, served.chat)
        step = self._again(stored, prompt) if stored else self._new_step(run, workflow, prompt)
        job = _Job(run, step, served, prompt, form, workflow.store)
        try:
            if stored:
                await to_the_end(self._requeue(job))
            await self._place(job, workflow)
        except BaseException as error:
            await self._close_failed(job, run.why or error)
            raise

    async def _prompt(self, run: StepRun, workflow: Workflow, chat: ChatModel, stored: Step | None) -> Prompt:
        """The prompt of a step. One that runs again keeps its parent; that of a conversation is found once more,
        so that its prompt tells what it broke, unless the head has moved meanwhile."""
        command = run.command
        if stored is None or isinstance(command.input, Conversation):
            head = command.parent_step_id or workflow.head_step_id
            prompt = await self._prompts.build(command, workflow, chat, head)
            found = prompt.parent.step_id if prompt.parent else None
            if stored is None or found == stored.parent_step_id:
                return prompt
        return await self._prompts.build(command, workflow, chat, stored.parent_step_id)

    async def checkpoint(self) -> None:
        """Write down what the running attempts have used so far; without a token yet, the opening stands."""
        if checkpoints := [attempt.checkpoint() for attempt in self._attempts.values() if attempt.generated]:
            await self._ledger.checkpoint(checkpoints)

    async def _place(self, job: _Job, workflow: Workflow) -> None:
        async def queue() -> None:
            if not job.stored:
                await to_the_end(self._open(job, None))
            job.run.begin()

        def show(waiting: Waiting) -> None:
            job.run.show(waiting.phase, waiting.position)

        sampling = job.run.command.sampling.over(workflow.sampling).over(job.served.sampling)
        sampled = sampling.temperature != 0
        waiter, choice = self._pools.choose(workflow, job.prompt, sampled=sampled, enforced=job.form is not None)
        async with self._replicas.place(waiter, queue, show) as replica:
            _check_sampling(replica, sampled=sampled)
            if job.form:
                job.form.check(replica)
            limit = replica.info.max_model_len if replica.info else None
            max_tokens = _room(job.prompt, limit, sampling.max_output_tokens)
            attempt = self._new_attempt(job, replica, settled(choice, replica), max_tokens, sampling.stop)
            await to_the_end(self._open(job, attempt))
            job.run.begin()
            self._attempts[attempt.new.attempt_id] = attempt
            try:
                await self._run_attempt(job, attempt, self._request(job, sampling, max_tokens))
            finally:
                del self._attempts[attempt.new.attempt_id]

    async def _requeue(self, job: _Job) -> None:
        try:
            taken = await self._ledger.requeue_step(stored_step(job.step, job.store))
        except LedgerUnavailable as error:
            self._closer.keep(partial(self._undo, job, None, error))
            raise
        if not taken:
            raise ShuttingDown("another runtime took the step over; repeat the request")
        job.stored = True

    async def _open(self, job: _Job, attempt: Attempt | None) -> None:
        """Make the step, the attempt or both durable, and remember that they are."""
        try:
            if not job.stored:
                if made := job.run.made:
                    await self._ledger.create_workflow(made.workflow, made.request_hash)
                    self._unstored.keep(made.workflow)
                step = stored_step(job.step, job.store)
                await self._ledger.open_step(step, attempt.new if attempt else None)
            elif attempt:
                await self._ledger.open_attempt(attempt.new)
        except LedgerUnavailable as error:
            self._closer.keep(partial(self._undo, job, attempt, error))
            raise
        job.stored, job.attempt = True, attempt

    async def _undo(self, job: _Job, attempt: Attempt | None, error: LedgerUnavailable) -> None:
        """Close what a database took although it did not say so in time."""
        with suppress(StepNotFound):
            if attempt:
                await self._write_end(job, attempt, _failure(attempt, *outcome.verdict(error)))
            else:
                await self._ledger.close_queued(job.step.step_id, *outcome.verdict(error))

    async def _run_attempt(self, job: _Job, attempt: Attempt, request: GenerateRequest) -> None:
        run = job.run
        run.show(Phase.PREFILL)

        def emit(events: Sequence[Event]) -> None:
            if events:
                run.quiet()
            for event in events:
                run.log.add(event)

        await attempt.stream(request, emit)
        keyed = await job.prompt.keyed_apart(attempt.answer.message)
        end = _success(job, attempt, keyed)
        await self._close(job, attempt, end)
        self._prompts.remember(
            job.step.tenant,
            job.prompt.head(
                job.step,
                job.served.chat,
                keyed=keyed,
                generated=attempt.kept(),
                reasoning_tokens=end.usage.reasoning,
                replica=attempt.replica.name,
            ),
        )
        run.log.add(outcome.finished_of(end))

    async def _close_failed(self, job: _Job, error: BaseException) -> None:
        """Close what is durable of a job that failed, and tell the error what was used."""
        if not job.stored or job.closed:
            return
        state, reason, message = outcome.verdict(error)
        if job.attempt is None:
            await self._closer.close(lambda: self._ledger.close_queued(job.step.step_id, state, reason, message))
            return
        end = _failure(job.attempt, state, reason, message)
        await self._close(job, job.attempt, end)
        if isinstance(error, PacelineError):
            outcome.with_failure(error, end)

    async def _close(self, job: _Job, attempt: Attempt, end: AttemptEnd) -> None:
        """Commit the end, or leave it to the closer. One that the ledger refuses leaves the job open, to be closed
        as failed: a step that never ends could not be repeated."""
        try:
            await self._closer.close(partial(self._write_end, job, attempt, end))
        except LedgerUnavailable:
            job.closed = True
            raise

    async def _write_end(self, job: _Job, attempt: Attempt, end: AttemptEnd) -> None:
        """Commit the end, then let everybody know."""
        await self._ledger.close_attempt(stored_end(end, job.store))
        job.closed = True
        report = StepReport(
            tenant=job.step.tenant,
            model=job.served.name,
            workflow_id=end.workflow_id,
            step_id=end.step_id,
            request_id=job.step.request_id,
            attempt_id=end.attempt_id,
            attempt=attempt.new.number,
            prompt_tokens=attempt.new.prompt_tokens,
            draft_limit=attempt.replica.draft_tokens,
            pool=attempt.new.pool,
            input=job.step.input,
            end=end,
            request=attempt.request,
            kept_tokens=attempt.kept_count(),
            match=job.step.match,
            store=job.store,
        )
        for observer in self._observers:
            observer.step_ended(report)

    def _new_step(self, run: StepRun, workflow: Workflow, prompt: Prompt) -> Step:
        return Step(
            step_id=run.step_id,
            workflow_id=workflow.workflow_id,
            tenant=workflow.tenant,
            request_id=run.command.request_id,
            request_hash=run.request_hash,
            state=StepState.QUEUED,
            input=prompt.messages,
            system=prompt.system,
            tools=prompt.tools,
            parent_step_id=prompt.parent.step_id if prompt.parent else None,
            chain_hash=run.chain.whole if run.chain else None,
            match=run.match,
            runtime_id=self._runtime_id,
            created_at=utcnow(),
        )

    def _again(self, stored: Step, prompt: Prompt) -> Step:
        """A step that runs again. The rules for volatile blocks may have changed since."""
        return replace(stored, system=prompt.system, tools=prompt.tools, runtime_id=self._runtime_id)

    def _new_attempt(
        self, job: _Job, replica: Replica, pool: PoolChoice, max_tokens: int, stop: tuple[str, ...]
    ) -> Attempt:
        tokens, model = job.prompt.context.tokens, job.served.name
        new = NewAttempt(
            attempt_id=new_id("at"),
            step_id=job.step.step_id,
            workflow_id=job.step.workflow_id,
            number=job.step.attempt_count + 1,
            replica=replica.name,
            runtime_id=self._runtime_id,
            prompt_tokens=tokens,
            speculation_profile=replica.speculation_profile,
            dispatched_at=utcnow(),
            reservation=Reservation(self._prices.worst_case(model, tokens, max_tokens), tokens + max_tokens),
            cost=self._prices.list_cost(model, Usage(uncached_prompt=tokens)),
            pool=pool,
        )
        parser = job.served.chat.parser(callable_tools(job.run.command, job.prompt.tools), stop)
        return Attempt(new, model, replica, parser=parser, prices=self._prices, arrived=job.run.arrived)

    def _request(self, job: _Job, sampling: Sampling, max_tokens: int) -> GenerateRequest:
        step = job.step
        return GenerateRequest(
            request_id=f"{step.step_id}-{step.attempt_count + 1}",
            prompt_json=job.prompt.context.prompt_json(),
            prompt_tokens=job.prompt.context.tokens,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_token_ids=job.served.chat.stop_token_ids,
            cache_salt=cache_salt(step.tenant),
            session_id=step.workflow_id,
            structured_outputs=job.form.structured_outputs if job.form else None,
        )


def _check_repeatable(stored: Step, workflow: Workflow) -> None:
    """Refuse to run a step again whose messages were deleted: its row would tell of an answer to nothing."""
    if workflow.store is StorePolicy.FULL and not stored.input:
        raise TranscriptGone(
            f"the messages of step {stored.step_id} are deleted; send the request under a new request_id",
            step_id=stored.step_id,
        )


def _check_sampling(replica: Replica, *, sampled: bool) -> None:
    if replica.greedy_only and sampled:
        raise EngineRefused(
            f"sampling.temperature: {replica.greedy_only}; set it to 0, or use a replica without speculation",
            field="sampling.temperature",
            replica=replica.name,
        )


def _room(prompt: Prompt, limit: int | None, wanted: int | None) -> int:
    """The most tokens that may be generated. Raises `ContextTooLong` when there is no room for one."""
    tokens = prompt.context.tokens
    room = (limit or 2**31 - 1) - tokens
    if room < 1:
        raise ContextTooLong(
            f"the prompt has {tokens} tokens and the model's context {limit}; shorten the messages",
            field="input",
            prompt_tokens=tokens,
            context_tokens=limit,
        )
    return min(room, wanted or room)


def _success(job: _Job, attempt: Attempt, keyed: Keyed) -> AttemptEnd:
    answer = attempt.answer
    usage = attempt.usage(answer.reasoning_tokens)
    return AttemptEnd(
        attempt_id=attempt.new.attempt_id,
        step_id=attempt.new.step_id,
        workflow_id=attempt.new.workflow_id,
        state=StepState.FINISHED,
        usage=usage,
        speculation=attempt.speculation(),
        timings=attempt.timings(),
        cost=attempt.cost(),
        replica=attempt.replica.name,
        ended_at=utcnow(),
        accelerator_seconds=attempt.accelerator_seconds(),
        output=answer.message,
        malformed_tool_calls=answer.malformed_tool_calls,
        output_flags=answer.flags,
        keys=keyed.keys,
        calls=keyed.calls,
        chain_hash=job.run.chain.answered(keyed.keys[-1]) if job.run.chain else None,
        segments=job.prompt.segments(job.served.chat, attempt.kept()),
        finish_reason=attempt.finish_reason(),
        reuse=outcome.reuse_of(job.prompt, attempt.replica, usage.cached_prompt),
        step_class=classify(answer.message),
    )


def _failure(attempt: Attempt, state: StepState, reason: str, message: str) -> AttemptEnd:
    return AttemptEnd(
        attempt_id=attempt.new.attempt_id,
        step_id=attempt.new.step_id,
        workflow_id=attempt.new.workflow_id,
        state=state,
        usage=attempt.usage(),
        speculation=attempt.speculation(),
        timings=attempt.timings(),
        cost=attempt.cost(),
        replica=attempt.replica.name,
        ended_at=utcnow(),
        accelerator_seconds=attempt.accelerator_seconds(),
        error_reason=reason,
        error_message=message,
    )
