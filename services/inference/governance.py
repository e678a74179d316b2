"""Who may use which models and how much: the plans and budgets of `models.toml`, and what they mean for one question. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.contracts.inference import Complete
from services.inference.budget import Limit
from services.inference.cache import LOCAL
from services.inference.usage import Where, account_name, user_day_account

OWNER = "owner"


class Limits(BaseModel):
    """Ceilings in US dollars; absent ones hold nobody back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_usd: float | None = Field(default=None, ge=0)
    user_day_usd: float | None = Field(default=None, ge=0)

    def over(self, other: "Limits") -> "Limits":
        """These limits, and those of `other` where these say nothing."""
        return Limits(
            run_usd=other.run_usd if self.run_usd is None else self.run_usd,
            user_day_usd=other.user_day_usd if self.user_day_usd is None else self.user_day_usd,
        )


class Governance(BaseModel):
    """The models of each plan in their order, the limits of everybody and those of a plan."""

    model_config = ConfigDict(frozen=True)

    plans: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    limits: Limits = Limits()
    plan_limits: Mapping[str, Limits] = Field(default_factory=dict)

    def limits_of(self, plan: str | None) -> Limits:
        """The limits of a plan, or everybody's."""
        return self.plan_limits.get(plan or "", Limits()).over(self.limits)


def read_governance(document: Mapping[str, Any], limits: Limits, faults: list[str]) -> Governance:
    """The `[plans]` and `[budgets]` of `models.toml`; `limits` are those of the environment and come first."""
    plans: dict[str, tuple[str, ...]] = {}
    for name, models in _table(document, "plans", faults).items():
        if not isinstance(models, list) or not models or not all(isinstance(model, str) for model in models):
            faults.append(f"plans.{name}: give a list of model names, the preferred one first")
            continue
        plans[name] = tuple(models)
    own: dict[str, Any] = {}
    plan_limits: dict[str, Limits] = {}
    for name, value in _table(document, "budgets", faults).items():
        if isinstance(value, dict):
            plan_limits[name] = _limits(value, f"budgets.{name}", faults)
        else:
            own[name] = value
    faults.extend(f"budgets.{name}: there is no such plan" for name in plan_limits if name not in plans)
    return Governance(plans=plans, limits=limits.over(_limits(own, "budgets", faults)), plan_limits=plan_limits)


def _table(document: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, Any]:
    table = document.get(name, {})
    if isinstance(table, dict):
        return table
    faults.append(f"{name}: this is a table, written [{name}]")
    return {}


def _limits(values: dict[str, Any], place: str, faults: list[str]) -> Limits:
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        faults.extend(f"{place}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False))
        return Limits()


def owner_of(question: Complete) -> tuple[str, str]:
    """The tenant and the user that a call counts on."""
    return question.tenant or LOCAL, question.user or OWNER


def limits_for(question: Complete, limits: Limits, now: datetime) -> tuple[Limit, ...]:
    """The accounts of a call with their ceilings: what the asker names, and the user's day (UTC).

    An account of one call has no ledger unless it has a ceiling: nothing is ever added up there.
    """
    tenant, user = owner_of(question)
    ceilings = [ceiling for ceiling in (question.ceiling_usd, limits.run_usd) if ceiling is not None]
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    day = f"{now:%Y-%m-%d}"
    of_day = Limit(user_day_account(tenant, user, day), limits.user_day_usd, f"budget of {user} for {day}", midnight)
    if _of_one_call(question) and not ceilings:
        return (of_day,)
    return Limit(account_name(question.account), min(ceilings) if ceilings else None), of_day


def _of_one_call(question: Complete) -> bool:
    return question.account == question.request_id


def where_of(question: Complete, model: str, now: datetime) -> Where:
    """The place that a call is counted at; calls that have an account each are counted together, by their purpose."""
    tenant, user = owner_of(question)
    account = question.purpose if _of_one_call(question) else account_name(question.account)
    return Where(day=f"{now:%Y-%m-%d}", tenant=tenant, user=user, account=account, model=model)
