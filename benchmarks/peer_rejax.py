"""Trains rejax's PPO on CartPole, a piece at a time; run by the interpreter of an environment that has rejax.

It talks in lines of JSON: one after compiling, then one for each line read, `{"seconds": 2.0}`, that says how long
to train for about. Nothing of podracer is imported.
"""

import argparse
import importlib.metadata
import json
import time

import jax
import jax.numpy as jnp
from rejax import PPO

_PACKAGES = ("rejax", "gymnax", "jax", "flax", "optax")


def make_algorithm(num_envs: int, updates: int) -> PPO:
    """The settings of the cases `ppo-anakin-cartpole`, for a number of updates a call.

    rejax evaluates within its compiled program: here with a callback that does nothing, once a call.
    """
    steps = updates * num_envs * 128
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=num_envs,
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=2.5e-4,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    )
    return algorithm.replace(eval_callback=lambda algorithm, state, key: jnp.zeros(()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True, help="updates a call of the compiled program")
    options = parser.parse_args()

    algorithm = make_algorithm(options.num_envs, options.updates)
    state = algorithm.init_state(jax.random.key(0))
    started = time.perf_counter()
    train = jax.jit(lambda state: PPO.train(algorithm, train_state=state)[0])
    for _ in range(3):  # the state that training returns differs in types from the first one: it compiles twice
        state = jax.block_until_ready(train(state))
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    print(json.dumps({"compile_seconds": time.perf_counter() - started, "versions": versions}), flush=True)

    while True:
        try:
            seconds = json.loads(input())["seconds"]
        except EOFError:
            return
        calls, started, cpu = 0, time.perf_counter(), time.process_time()
        while not calls or time.perf_counter() - started < seconds:
            state = jax.block_until_ready(train(state))
            calls += 1
        env_steps = calls * options.updates * options.num_envs * 128
        elapsed = time.perf_counter() - started
        piece = {"env_steps": env_steps, "seconds": elapsed, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps(piece), flush=True)


if __name__ == "__main__":
    main()
