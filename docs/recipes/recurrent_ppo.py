"""PPO with a recurrent policy in a game of memory: one program, with `vpps.torch.LSTM` and with PyTorch's cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import vpps.torch

State = Sequence[Tensor]  # h and c, (1, environments, HIDDEN) each
Layer = Callable[[int, int], nn.Module]
HIDDEN = 64
FRAMES, ENVIRONMENTS, EPOCHS, MINIBATCH = 128, 16, 4, 4  # frames per environment and update; environments
DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.9, 0.95, 0.2, 0.01


class LoopedLSTM(nn.LSTMCell):
    """A layer in PyTorch that takes `resets=`: a call per frame, and a mask on the state."""

    def forward(self, x: Tensor, state: State, *, resets: Tensor) -> tuple[Tensor, State]:
        h, c, outputs = state[0][0], state[1][0], []
        for frame, keep in zip(x, (~resets).float()[..., None], strict=True):
            h, c = super().forward(frame, (keep * h, keep * c))
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])


class Lamps:
    """A game of memory, n times side by side. Every frame shows one of three lamps, drawn at random, and the agent has
    to name the lamp of the episode's first frame. A wrong answer ends the episode; one frame in 16 ends it as well.
    Nothing in a frame shows that it is the first.
    """

    def __init__(self, n: int) -> None:
        self.first = self.shown = torch.randint(3, (n,))

    def frame(self) -> Tensor:
        """Return the observations, (n, 3)."""
        return nn.functional.one_hot(self.shown, 3).float()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards, and True for episodes that end; new ones follow them."""
        right = actions == self.first
        ended = ~right | (torch.rand(right.shape) < 1 / 16)
        self.shown = torch.randint(3, right.shape)
        self.first = torch.where(ended, self.shown, self.first)
        return right.float(), ended


class Policy(nn.Module):
    """Actor and critic on the state of an LSTM."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.encoder, self.lstm = nn.Linear(3, HIDDEN), layer(HIDDEN, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, 3), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, state: State, resets: Tensor) -> tuple[Categorical, Tensor, State]:
        """Return the actions' distribution, the values, and the state; x is (frames, environments, 3)."""
        h, state = self.lstm(torch.tanh(self.encoder(x)), state, resets=resets)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1), state


class Rollout(NamedTuple):
    """Frames of all environments: (frames, environments, ...), and `state` before the first of them."""

    x: Tensor
    resets: Tensor
    actions: Tensor
    log_p: Tensor
    advantages: Tensor
    returns: Tensor
    state: State


class Agent:
    """A policy with its environments."""

    def __init__(self, layer: Layer) -> None:
        self.policy, self.game = Policy(layer), Lamps(ENVIRONMENTS)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)
        self.state: State = (torch.zeros(1, ENVIRONMENTS, HIDDEN), torch.zeros(1, ENVIRONMENTS, HIDDEN))
        self.ended = torch.ones(ENVIRONMENTS, dtype=torch.bool)  # the next frame is the first of an episode

    @torch.no_grad()
    def collect(self) -> tuple[Rollout, float]:
        """Play; returns the frames and the mean return of an episode."""
        first, frames = self.state, []
        for _ in range(FRAMES):
            x, reset = self.game.frame(), self.ended
            policy, value, self.state = self.policy(x[None], self.state, reset[None])
            action = policy.sample()
            reward, self.ended = self.game.step(action[0])
            frames.append((x, reset, action[0], policy.log_prob(action)[0], value[0], reward, self.ended))
        x, resets, actions, log_p, values, rewards, ends = map(torch.stack, zip(*frames, strict=True))
        _, last, _ = self.policy(self.game.frame()[None], self.state, self.ended[None])
        advantages = advantages_of(rewards, torch.cat([values, last]), ends)
        mean = float(rewards.sum() / ends.sum().clamp(min=1))
        return Rollout(x, resets, actions, log_p, advantages, advantages + values, first), mean

    def learn(self, rollout: Rollout) -> None:
        """Improve the policy with whole sequences: a mini-batch is some of the environments."""
        for _ in range(EPOCHS):
            for some in torch.randperm(ENVIRONMENTS).split(MINIBATCH):
                x, resets, actions, log_p, advantages, returns = (column[:, some] for column in rollout[:-1])
                policy, values, _ = self.policy(x, tuple(s[:, some] for s in rollout.state), resets)
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                ratio = (policy.log_prob(actions) - log_p).exp()
                gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
                loss = 0.5 * (values - returns).square().mean() - gain - ENTROPY * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()


def advantages_of(rewards: Tensor, values: Tensor, ends: Tensor) -> Tensor:
    """Return generalised advantage estimates (Schulman et al. 2016); values has one frame more."""
    found, advantage = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        on = (~ends[t]).float()
        advantage = rewards[t] + DISCOUNT * on * values[t + 1] - values[t] + DISCOUNT * LAMBDA * on * advantage
        found[t] = advantage
    return found


LAYERS: dict[str, Layer] = {"vpps.torch.LSTM": vpps.torch.LSTM, "torch.nn.LSTMCell": LoopedLSTM}


def main(updates: int = 13, layers: dict[str, Layer] = LAYERS) -> dict[str, tuple[list[float], list[float]]]:
    """Train with each layer in turn; returns the mean return and the frames per second of every update, by layer."""
    torch.set_num_threads(1)  # all tensors are small
    agents: dict[str, Agent] = {}
    for name, layer in layers.items():
        torch.manual_seed(1)  # equal weights
        agents[name] = Agent(layer)
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in agents}
    print("mean return, frames/s:", "; ".join(agents))
    for update in range(updates):
        for name, agent in agents.items():
            torch.manual_seed(update)  # equal games, as long as the actions are equal
            start = time.perf_counter()
            rollout, mean = agent.collect()
            agent.learn(rollout)
            found[name][0].append(mean)
            found[name][1].append(FRAMES * ENVIRONMENTS / (time.perf_counter() - start))
        if update % 3 == 0:
            shown = "; ".join(f"{means[-1]:5.2f} {median(rates):6,.0f}" for means, rates in found.values())
            print(f"after {update * FRAMES * ENVIRONMENTS:6,} frames: {shown}")
    return found


if __name__ == "__main__":
    main()
