"""
Sim to real: a simulator as the source
======================================

**Trials in my simulator are free, trials on the robot are not. How do I use both?**

.. image:: images/sphx_glr_sim_to_real_001.png
   :alt: the features of boxes in both settings of the physics, and the distance by which policies miss the goal

A robot pushes a box across a table, and the box should stop at a goal. Which of five forces should
the robot use? The simulator is `MuJoCo <https://mujoco.org>`_. Source and target are two settings
of its physics: boxes in the target are heavier, and the table is rougher. The settings were fixed
before a policy was trained on them.

The tutorial needs ``pip install 'daband[deep]' gymnasium mujoco``.
"""

# %%
# An environment with two settings
# --------------------------------
#
# A round is one push. Before it, the robot taps the box with a small force. The context is the
# distance to the goal, the distance that the box slid after the tap, and its speed: they reveal the
# mass and the friction of each box. The reward is minus the distance in metres by which the box
# misses the goal. The table ends after 1.5 m.
#
# The class is an ordinary environment of `gymnasium <https://gymnasium.farama.org>`_. It draws only
# from ``self.np_random``: a reset with the same seed gives the same box.

import gymnasium
import matplotlib.pyplot as plt  # pip install matplotlib
import mujoco
import numpy as np

import daband

MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="5 1 .1"/>
    <body name="box" pos="0 0 .03">
      <freejoint/>
      <geom name="box" type="box" size=".03 .03 .03" mass="1" priority="1"/>
    </body>
  </worldbody>
</mujoco>
"""
FORCES = (3.0, 5.0, 7.0, 9.0, 11.0)  # newtons


class Push(gymnasium.Env):
    """Push a box of random mass (kg) and friction to a goal between 0.2 and 1 m away."""

    def __init__(self, *, mass: tuple[float, float], friction: tuple[float, float]) -> None:
        self.mass = mass
        self.friction = friction
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = gymnasium.spaces.Discrete(len(FORCES))
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mass = self.np_random.uniform(*self.mass)
        self.model.body("box").mass[:] = mass
        self.model.body("box").inertia[:] = mass * 0.06**2 / 6
        self.model.geom("box").friction[0] = self.np_random.uniform(*self.friction)
        mujoco.mj_setConst(self.model, self.data)
        self.goal = self.np_random.uniform(0.2, 1.0)
        measured_tap = np.array(self._push(4.0)) * (1 + 0.01 * self.np_random.normal(size=2))
        return np.array([self.goal, *measured_tap]), {}

    def step(self, action):
        distance, _ = self._push(FORCES[action])
        return np.zeros(3), -abs(distance - self.goal), True, False, {}

    def _push(self, force: float) -> tuple[float, float]:
        """Push for 0.2 s; return the distance to where the box stops, and its largest speed."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.xfrc_applied[1, 0] = force
        mujoco.mj_step(self.model, self.data, nstep=20)
        speed = float(self.data.qvel[0])
        self.data.xfrc_applied[1, 0] = 0.0
        while self.data.qvel[0] > 0.01 and self.data.time < 4.0:
            mujoco.mj_step(self.model, self.data, nstep=10)
        return min(float(self.data.qpos[0]), 1.5), speed


simulator = Push(mass=(0.3, 0.8), friction=(0.15, 0.40))
robot = Push(mass=(0.6, 0.9), friction=(0.30, 0.45))

# %%
# From environments to a pair
# ---------------------------
#
# The simulator is reset with the same seed once per force, so the reward of every arm is known in
# the source. In the target, the robot is reset, and taps boxes, but no push is tried. Contexts that
# were recorded on a robot would do as well. ``target_test`` has pushes of the robot for the
# comparison at the end; training cannot use them.


def try_every_force(env, seeds):
    contexts = np.stack([env.reset(seed=seed)[0] for seed in seeds])
    rewards = np.empty((len(seeds), len(FORCES)))
    for row, arm in np.ndindex(rewards.shape):
        env.reset(seed=seeds[row])
        rewards[row, arm] = env.step(arm)[1]
    return contexts, rewards


pair = daband.domains.from_arrays(
    source=try_every_force(simulator, range(500)),
    target=np.stack([robot.reset(seed=seed)[0] for seed in range(500, 1000)]),
    target_test=try_every_force(robot, range(1000, 1500)),
    class_names=[f"{force:.0f} N" for force in FORCES],
    name="gymnasium",
)
print(pair)

# %%
# Train in the simulator, for the robot
# -------------------------------------
#
# The incumbent is the force with the best mean reward in the simulator. The same box features mean
# the same in both settings, so the default assumption, ``shift="covariate"``, is right here
# (:doc:`/concepts/assumptions`).

policies = {
    "best force": daband.Constant.for_pair(pair, seed=0),
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "Mixture": daband.Mixture.for_pair(pair, recipe="small", seed=0),
}
metres_missed = {}
for name, policy in policies.items():
    daband.train(policy, source=pair.source, target=pair.target, episodes=35)
    simulated_miss = -daband.evaluate(policy, pair.source_test, as_domain="source").value
    metres_missed[name] = -daband.evaluate(policy, pair.target_test).value
    print(
        f"{name:10} misses by {100 * simulated_miss:3.0f} cm in the simulator, "
        f"by {100 * metres_missed[name]:3.0f} cm on the robot"
    )
best_rewards = pair.target_test.read_expected(0, len(pair.target_test)).max(axis=1)
metres_missed["best possible"] = -best_rewards.mean()

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=[1, 1.1])
all_rows = np.arange(len(pair.source)), np.arange(len(pair.target))
for domain, rows, label in zip(
    (pair.source, pair.target), all_rows, ("simulator", "robot"), strict=True
):
    _, slid, speed = domain.read(rows).T
    axes[0].scatter(100 * slid, speed, s=5, alpha=0.6, label=label)
axes[0].set(
    xlabel="distance after a tap, cm",
    ylabel="speed after a tap, m/s",
    xscale="log",
    title="contexts",
)
axes[0].legend(frameon=False)
bars = axes[1].barh(
    list(metres_missed),
    [100 * metres for metres in metres_missed.values()],
    color=["#9fb3c8", "#9fb3c8", "#0072b2", "#dddddd"],
)
axes[1].bar_label(bars, fmt="%.0f cm", padding=3)
axes[1].invert_yaxis()
axes[1].set(
    xlim=(0, 130 * max(metres_missed.values())),
    xlabel="mean distance to the goal",
    title="on the robot",
)
plt.show()
assert metres_missed["Mixture"] < 0.6 * metres_missed["best force"]

# %%
# May the robot use it?
# ---------------------
#
# ``assess`` estimates the advantage over the incumbent in the target from simulated rewards only.
# It cannot know that the physics of a real robot is like the simulator's. ``audit`` therefore tries
# some pushes on the robot: it draws contexts and arms, and ``ask`` returns their rewards.

policy = policies["Mixture"]
assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
print(assessment.sentence)

seeds = range(500, 1000)  # of the target contexts
seed_by_context = {robot.reset(seed=seed)[0].tobytes(): seed for seed in seeds}


def push_on_the_robot(contexts, arms):
    rewards = []
    for context, arm in zip(contexts, arms, strict=True):
        robot.reset(seed=seed_by_context[context.tobytes()])
        rewards.append(robot.step(int(arm))[1])
    return rewards


audit = daband.audit(
    policy, target=pair.target, ask=push_on_the_robot, budget=40, incumbent=assessment.incumbent_arm
)
print(
    f"after 40 pushes: {audit.advantage:+.2f} m over this force, 95% interval {audit.low:+.2f} to"
    f" {audit.high:+.2f}"
)
assert audit.low > 0

# %%
# Each push on the robot may also be learned: ``policy.update(contexts, arms, rewards)``, after
# ``policy.deploy("target")`` (:doc:`own_loop`).
