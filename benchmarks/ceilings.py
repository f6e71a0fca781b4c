"""What the service is compared with: an empty FastAPI + pydantic endpoint."""

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import AwareDatetime, BaseModel

from benchmarks.load import HOST


class DecideRequest(BaseModel):
    campaign: str
    context: dict[str, Any]
    decision_id: str | None = None
    excluded_actions: list[str] = []
    subject: str | None = None
    at: AwareDatetime | None = None


class Score(BaseModel):
    action: str
    estimate: float
    bonus: float
    score: float


class Decision(BaseModel):
    decision_id: str
    campaign: str
    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float
    belief: list[float]
    scores: list[Score]
    decided_at: str


class RewardRequest(BaseModel):
    campaign: str
    decision_id: str
    reward: float


class RewardAnswer(BaseModel):
    decision_id: str
    campaign: str
    round: int
    reward: float
    source: str
    received_at: str


def create_empty_app() -> FastAPI:
    """Build endpoints with the shapes of /decide and /reward that return constants with realistic numbers of digits."""
    app = FastAPI()
    scores = [
        Score(action=action, estimate=0.5231470588235294, bonus=0.01314705882352941, score=0.5362941176470588)
        for action in ("none", "email", "call")
    ]
    now = "2026-01-02T03:04:05.678901Z"
    constant: dict[str, Any] = {
        "round": 12_345,
        "stage": 1_235,
        "model_version": 1_234,
        "mode": "optimistic",
        "action": "email",
        "propensity": 1.0,
        "belief": [0.8231470588235294, 0.17685294117647063],
        "scores": scores,
        "decided_at": now,
    }

    @app.post("/decide")
    async def decide(request: DecideRequest) -> Decision:
        return Decision(decision_id=request.decision_id or "none", campaign=request.campaign, **constant)

    @app.post("/reward")
    async def reward(request: RewardRequest) -> RewardAnswer:
        return RewardAnswer(**request.model_dump(), round=12_345, source="client", received_at=now)

    return app


def serve(app: Any) -> None:
    """Serve an application with the service's server settings, and print its address in the same form."""
    listener = socket.create_server((HOST, 0))
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", log_level="warning", access_log=False)
    print(f"is at http://{HOST}:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
