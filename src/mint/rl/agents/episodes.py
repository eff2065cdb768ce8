"""Environments of Gymnasium and of OpenEnv servers, for a model that writes actions as text.

Both have episodes: the model sees an observation and replies, its reply becomes an action, and the
action yields a reward and the next observation. The reward of an action is that of its reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mint.rl.agents.chat import Chat, ContextFull
from mint.rl.rollouts.credit import TurnScore, per_turn
from mint.rl.runtime.threads import call


@dataclass
class Episodes(ABC):
    """The common part of both kinds of environments.

    ``make`` returns a new environment, or a client of one, for every rollout; ``tasks`` are
    arguments of its ``reset``. ``to_action`` turns a reply into an action; its ``ValueError`` is
    shown to the model, and the reply gets ``invalid_reward``. ``show`` turns an observation into
    text.
    """

    make: Callable[[], Any]
    tasks: Sequence[Mapping[str, Any]] = ({},)
    to_action: Callable[[str], Any] = lambda text: {"message": text}
    show: Callable[[Any], str] = str
    instructions: str = ""
    invalid_reward: float = 0.0

    def build_dataset(self) -> list[dict[str, Any]]:
        """Return the arguments of ``reset`` for each episode."""
        return [dict(task) for task in self.tasks]

    @abstractmethod
    async def begin(self, episode: Any, task: Mapping[str, Any]) -> Any:
        """Begin an episode, and return its first observation."""

    @abstractmethod
    async def act(self, episode: Any, action: Any) -> tuple[Any, float, bool]:
        """Carry out an action; return the observation, the reward, and whether it is over."""

    async def rollout(self, task: Mapping[str, Any], chat: Chat) -> TurnScore:
        """Play one episode to its end, or to the last turn."""
        episode = await call(self.make)
        rewards: list[float] = []
        try:
            shown, over = self.show(await self.begin(episode, task)), False
            if self.instructions:
                shown = f"{self.instructions}\n\n{shown}"
            while not over and chat.turns_left:
                chat.user(shown)
                try:
                    reply = await chat.reply()
                except ContextFull:
                    break
                try:
                    action = self.to_action(reply.text)
                except ValueError as error:
                    rewards.append(self.invalid_reward)
                    shown = f"error: {error}"
                    continue
                observation, reward, over = await self.act(episode, action)
                rewards.append(reward)
                shown = self.show(observation)
        finally:
            if hasattr(episode, "close"):
                await call(episode.close)
        return per_turn(rewards)


class GymnasiumEnvironment(Episodes):
    """A Gymnasium environment whose observations are text or can be shown as text.

    ``make`` returns a new environment for every rollout::

        GymnasiumEnvironment(lambda: gymnasium.make("MyText-v0"), seeds=range(100))
    """

    def __init__(
        self,
        make: Callable[[], Any],
        seeds: Sequence[int] = range(64),
        to_action: Callable[[str], Any] = str.strip,
        show: Callable[[Any], str] = str,
        instructions: str = "",
        invalid_reward: float = 0.0,
    ) -> None:
        tasks = [{"seed": int(seed)} for seed in seeds]
        super().__init__(make, tasks, to_action, show, instructions, invalid_reward)

    async def begin(self, episode: Any, task: Mapping[str, Any]) -> Any:
        observation, _ = await call(lambda: episode.reset(**task))
        return observation

    async def act(self, episode: Any, action: Any) -> tuple[Any, float, bool]:
        observation, reward, terminated, truncated, _ = await call(lambda: episode.step(action))
        return observation, float(reward), bool(terminated or truncated)


class OpenEnvEnvironment(Episodes):
    """An environment behind an OpenEnv server.

    ``make`` returns a client for every rollout: the environment's own, from its package, or one of
    :mod:`.openenv`. A client has ``reset(**task)`` and ``step(action)``, async or not, whose
    results have ``observation``, ``reward`` and ``done``::

        OpenEnvEnvironment(lambda: EchoEnv(base_url=url), to_action=EchoAction)
    """

    async def begin(self, episode: Any, task: Mapping[str, Any]) -> Any:
        return (await call(lambda: episode.reset(**task))).observation

    async def act(self, episode: Any, action: Any) -> tuple[Any, float, bool]:
        found = await call(lambda: episode.step(action))
        return found.observation, float(found.reward or 0.0), bool(found.done)
