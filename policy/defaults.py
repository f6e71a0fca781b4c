"""The constants of the default policy, all in one place.

Chosen on seeds 3001–3040 of the credit-card environment, together with 8 to 24 seeds each of the quiet-regimes, iid,
binary, sparse, belief-rewards, three-regimes and nelson environments, and never on seeds 1951–2050, on which the
default is judged. docs/policy.md describes what else was tried. Gains are in nats. The constants of the noise were
chosen on the same seeds of the worlds of benchmarks/rare.py, and of credit-card, binary, sparse and iid.
"""

# --- decisions: defaults of the configuration ---
STAGE_LENGTH = 10
RIDGE = 1.0
WARM_START_ROUNDS = 50
TRIAL_SHARE = 0.5  # of the rounds while an action is new: they are shared evenly among the actions (R12)
KAPPA = 3.0  # standard errors of optimism
GROWTH = 1.1  # re-estimate when the rounds have grown by this factor

# --- which candidate is in use (selection.py) ---
ENTER = (5.0, 4.0)  # (symbol, reward) gain over fewer regimes that brings more of them into use
STAY = (0.0, 0.0)  # and that keeps them in use
KINDS = 4.0  # reward gain of joint over smoothed statistics at which the choice between the two changes
FORGETTING = 1.7  # evidence of round s weighs (s/t)^1.7 at round t: about the last half of a campaign decides
CREDIT = 6.0  # gains that a number of regimes named by the campaign has in advance: its guard needs evidence against
# A one-regime policy plays in each context the one action it likes, and so sees little of what regimes would change.
# Once the symbols alone speak this clearly, more regimes are tried for a few re-estimations; again much later, if ever.
TRIAL_GAIN, TRIAL_LENGTH, TRIAL_AGAIN = 6.0, 3, 50
FIRST_ROUNDS = 75  # before that nothing can be said about regimes
LEAST_PERIODS = 10  # chain steps that a hold-out must span: within a period all rounds say the same

# --- fits (selection.py, joint.py) ---
RESTARTS_UNTIL = 2000  # rounds up to which EM also starts afresh: later the last estimate is the best start
ITERATIONS, FIRST_ITERATIONS = 4, 12  # of EM from the last estimate, and of joint EM from a smoothed one
IDLE_ITERATIONS = 1  # of EM for more regimes than are in use, which only have to keep up
LEAST_NOISE = 0.01  # of the rewards' standard deviation: the floor of σ̂

# --- the noise of each action (noise.py) ---
PRIOR_ROUNDS = 100.0  # with the noise of all actions together, that each action has in advance
PRIOR_DEVIATIONS = 1.0  # as large as the largest residual seen, that each action has in advance
ENOUGH_DEVIATIONS = 5  # rewards unlike the usual ones that the campaign must have seen to know what a deviation is
SEARCH_ROUNDS = 100  # until then round t belongs to the warm start with a frequency of √(SEARCH_ROUNDS / t)

# --- the law of delays (delays.py, exposure.py) ---
PRIOR_DELAYS = 2.0  # delays known in advance, spread over the whole wait
PRIOR_POINTS = 64  # at which they lie
LAW_GROWTH = 1.1  # estimate the law anew when the rewards have grown by this factor
LAW_SAMPLE = 10_000  # delays that an estimate uses at most, so that its cost is bounded
