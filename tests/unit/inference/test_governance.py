"""Plans and budgets: who may use which models and how much."""

import os
from datetime import UTC, datetime

import pytest

from libs.bus.errors import Refusal
from libs.contracts.inference import ChatMessage, Complete, ModelDescription
from services.inference.books import Books
from services.inference.budget import Budget
from services.inference.domain import ModelSpec, Price
from services.inference.governance import Governance, Limits, limits_for, where_of
from services.inference.settings import SettingsError, configured, read_settings
from services.inference.store import MemoryRecords
from services.inference.usage import UsageBook

SPEC = ModelSpec(description=ModelDescription(name="m"), wire="m", price=Price(input_usd=1000.0, output_usd=1000.0))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODELS = '[[models]]\nname="ollama/a"\n[[models]]\nname="ollama/b"\n'


def question(**more):
    return Complete(**{"request_id": "r", "account": "run-1", "messages": (ChatMessage(role="user", content="go"),)} | more)


@pytest.fixture
def read(monkeypatch, tmp_path):
    def read(text, **variables):
        for name in [name for name in os.environ if name.startswith("MODEL")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "models.toml").write_text(text)
        return configured(read_settings(), os.environ)

    return read


def test_plans_and_budgets_are_read_from_the_file(read):
    found = read(
        MODELS + '[plans]\nfree=["ollama/b"]\npro=["ollama/a","ollama/b"]\n'
        "[budgets]\nrun_usd=2\nuser_day_usd=5\n[budgets.free]\nuser_day_usd=0.5\n"
    ).governance
    assert found.plans == {"free": ("ollama/b",), "pro": ("ollama/a", "ollama/b")}
    assert found.limits_of("pro") == found.limits_of(None) == Limits(run_usd=2, user_day_usd=5)
    assert found.limits_of("free") == Limits(run_usd=2, user_day_usd=0.5)


def test_the_environment_goes_before_the_file_and_a_plan_before_both(read):
    found = read(
        MODELS + '[plans]\nfree=["ollama/b"]\n[budgets]\nuser_day_usd=5\n[budgets.free]\nuser_day_usd=0.5\n', MODEL_USER_DAY_USD="7"
    )
    assert found.governance.limits_of(None).user_day_usd == 7
    assert found.governance.limits_of("free").user_day_usd == 0.5


def test_plans_work_beside_a_model_of_the_environment(read):
    found = read('[plans]\nfree=["ollama/z"]\n', MODEL="ollama/z")
    assert found.governance.plans == {"free": ("ollama/z",)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[plans]\nfree=["ollama/c"]\n', "plans.free: ollama/c is neither MODEL"),
        ("[plans]\nfree=[]\n", "plans.free: give a list of model names"),
        ('[plans]\nfree="ollama/a"\n', "plans.free: give a list of model names"),
        ("[budgets]\nrun_usd=-1\n", "budgets.run_usd"),
        ("[budgets]\nrun_eur=1\n", "budgets.run_eur"),
        ("[budgets.free]\nrun_usd=1\n", "budgets.free: there is no such plan"),
        ("[plan]\nfree=[]\n", "there is no table plan"),
    ],
)
def test_faults_of_plans_and_budgets_are_named(read, text, fault):
    with pytest.raises(SettingsError) as caught:
        read(MODELS + text)
    assert fault in str(caught.value)


def test_a_call_counts_on_its_account_and_on_its_users_day():
    run, day = limits_for(question(tenant="t", user="anna", ceiling_usd=3.0), Limits(run_usd=2.0, user_day_usd=5.0), NOON)
    assert (run.account, run.ceiling_usd) == ("run-1", 2.0)
    assert (day.account, day.ceiling_usd, day.resets_at) == ("user:t:anna:2026-01-01", 5.0, datetime(2026, 1, 2, tzinfo=UTC))


def test_a_run_has_one_account_however_it_is_called():
    assert [limits_for(question(account=a), Limits(), NOON)[0].account for a in ("run-1", "run:run-1", "turn:1")] == [
        "run-1",
        "run-1",
        "turn:1",
    ]


def test_a_call_that_stands_alone_has_a_ledger_only_for_a_ceiling_and_is_counted_with_its_kind():
    alone = question(account="r", purpose="v1", user="anna")
    assert [limit.account for limit in limits_for(alone, Limits(), NOON)] == ["user:local:anna:2026-01-01"]
    own = limits_for(alone, Limits(run_usd=2.0), NOON)[0]
    assert (own.account, own.ceiling_usd) == ("r", 2.0)
    assert where_of(alone, "m", NOON).account == "v1"
    assert where_of(question(), "m", NOON).account == "run-1"


def test_a_call_that_names_nobody_counts_on_the_owner():
    assert limits_for(question(), Limits(), NOON)[1].account == "user:local:owner:2026-01-01"


def test_the_lower_one_of_two_ceilings_holds():
    assert limits_for(question(ceiling_usd=1.0), Limits(run_usd=2.0), NOON)[0].ceiling_usd == 1.0
    assert limits_for(question(), Limits(), NOON)[0].ceiling_usd is None


async def test_a_met_budget_of_a_day_says_which_the_numbers_and_when_it_resets():
    books = Books(Budget(MemoryRecords()), UsageBook(MemoryRecords()), Governance(limits=Limits(user_day_usd=0.1)), lambda: NOON)
    with pytest.raises(Refusal, match=r"budget of anna for 2026-01-01 of \$0\.1000 .* resets at 2026-01-02 00:00 UTC") as caught:
        await books.open(question(user="anna"), SPEC)
    assert (caught.value.code, caught.value.retryable, caught.value.after) == ("budget_exceeded", False, 12 * 3600)
