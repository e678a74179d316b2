"""Talk with a scripted model: streams, tools, branches, search, memory, skills, approvals, clients' tools, other people."""

import asyncio
import json

import pytest
import pytest_asyncio

from libs.testkit.product import product
from tests.e2e.chat_client import Chat, Issuer, Reader, calls, script, words

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "Roses are red, violets are blue, " * 20
CLOCK = {"name": "read_clock", "description": "the clock on the person's wall", "parameters": {"type": "object", "properties": {}}}
OPEN_RUN = ("solve_issue", {"title": "add subtracts", "repo": "team/none"})
SCENES = {
    "#plain": [{"content": "Hello, 世界!", "reasoning": "They greet."}],
    "#long": [{"content": LONG}],
    "#tool": [calls(("current_time", {"zone": "Asia/Shanghai"}), content="Let me see."), {"content": "It is late."}],
    "#branch": [{"content": "One."}, {"content": "Two."}, {"content": "Three."}],
    "#note": [{"content": "记下来了。"}],
    "#learn": [calls(("remember", {"content": "The person deploys with Kamal.", "topic": "deploy tool"})), {"content": "Noted."}],
    "#changed": [calls(("remember", {"content": "The person deploys with Nomad.", "topic": "deploy tool"})), {"content": "Noted again."}],
    "#skill": [calls(("load_skill", {"name": "code-review"})), {"content": "Reviewed."}],
    "#denied": [calls(OPEN_RUN), {"content": "Then not."}],
    "#approve": [calls(OPEN_RUN), {"content": "It is on its way."}],
    "#client": [calls(("read_clock", {})), {"content": "Your clock is right."}],
    "#two": [calls(("read_clock", {}), OPEN_RUN), {"content": "Both are known."}],
    "#look": [calls(("search_sessions", {"query": "蓝色"})), {"content": "Found it."}],
    "#unknown": [calls(("no_such_tool", {"x": 1})), {"content": "There is no such tool."}],
    "#broken": [{"error": {"status": 400, "message": "this model is broken"}}],
    "#down": [{"error": {"status": 503, "message": "overloaded"}}],
    "#empty": [{"content": ""}],
    "#blank": [{"content": " \n"}],
    "#mute": [calls(("current_time", {})), {"content": ""}],
    "#late": [{"content": ""}],
    "#half": [{"content": "The half of ", "dropped": True}],
}
RULES = [
    {"when": {"purpose": "chat", "contains": ["#late", "Your reply was empty"]}, "replies": [{"content": "Here I am."}]},
    {"when": {"purpose": "chat", "contains": ["#ask", "deploys with Nomad"], "lacks": "Kamal"}, "replies": [{"content": "With Nomad."}]},
    {"when": {"purpose": "chat", "contains": ["#ask"]}, "replies": [{"content": "I do not know."}]},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer():
    async with Issuer().running() as issuer:
        yield issuer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(tmp_path_factory, issuer):
    place = tmp_path_factory.mktemp("chat")
    environment = {"AGENT_CODER_JWT_ISSUER": issuer.url, "MODEL_BACKOFF_SECONDS": "0.05", "AGENT_CODER_BACKOFF_BASE_SECONDS": "0.1"}
    async with product(place / "home", script(place, SCENES, RULES, chunk_characters=7), environment=environment) as running:
        yield Chat(running, running.client, place)


def outputs(read: Reader) -> str:
    return json.dumps([c["output"] for c in read.chunks if c["type"] == "tool-output-available"], ensure_ascii=False)


async def test_an_answer_streams_as_ui_messages_and_is_stored_as_it_was_shown(chat):
    read = await chat.say("plain", "#plain hi")
    assert read.kinds == [
        *("start", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end", "finish-step", "finish"),
    ]
    assert read.text == "Hello, 世界!"
    question, answer = await chat.messages("plain")
    assert (question["role"], answer["role"]) == ("user", "assistant")
    assert answer["id"] == read.only("start")["messageId"]
    assert words(answer) == read.text


async def test_a_message_that_is_sent_again_is_the_same_turn(chat):
    message = {"id": "m-again", "role": "user", "parts": [{"type": "text", "text": "#plain once"}]}
    body = {"id": "again", "messages": [message], "trigger": "submit-message"}
    first, second = [await chat.whole(await chat.client.post("/api/chat", json=body)) for _ in range(2)]
    assert first.text == second.text
    assert first.only("start") == second.only("start")
    assert len(await chat.messages("again")) == 2


async def test_curl_shows_the_text_alone(chat):
    token = chat.client.headers["authorization"]
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sN", f"{chat.client.base_url}/api/chat", "-H", f"Authorization: {token}", "-H", "Accept: text/plain"),
        *("-H", "Content-Type: application/json", "-d", json.dumps({"message": "#long", "session": "curl"})),
        stdout=asyncio.subprocess.PIPE,
    )
    shown, _ = await process.communicate()
    assert (process.returncode, shown.decode()) == (0, LONG + "\n")


async def test_a_tool_is_shown_with_its_input_and_output(chat):
    read = await chat.say("tool", "#tool how late is it?")
    assert read.text == "Let me see.It is late."
    started, asked = read.only("tool-input-start"), read.only("tool-input-available")
    assert (started["toolName"], asked["input"]) == ("current_time", {"zone": "Asia/Shanghai"})
    assert "Asia/Shanghai" in str(read.only("tool-output-available")["output"])
    (part,) = (p for p in (await chat.messages("tool"))[-1]["parts"] if p["type"] == "tool-current_time")
    assert (part["state"], part["toolCallId"]) == ("output-available", asked["toolCallId"])


async def test_a_call_of_no_tool_is_told_to_the_model_and_the_turn_goes_on(chat):
    read = await chat.say("unknown", "#unknown")
    assert "no_such_tool" in read.only("tool-output-error")["errorText"]
    assert read.text == "There is no such tool."


async def test_other_answers_and_edited_questions_are_branches_and_nothing_is_lost(chat):
    first = await chat.say("branch", "#branch what?")
    question, answer = await chat.messages("branch")
    message = {"id": question["id"], "role": "user", "parts": question["parts"]}
    regenerate = {"id": "branch", "messages": [message], "trigger": "regenerate-message", "messageId": answer["id"]}
    again = await chat.whole(await chat.client.post("/api/chat", json=regenerate))
    other = again.only("start")["messageId"]
    assert other != first.only("start")["messageId"]
    await chat.say("branch", "and then?")
    assert await chat.texts("branch") == ["#branch what?", "One.", "and then?", "Two."]
    assert [m["id"] for m in await chat.messages("branch")][1] == other

    branches = (await chat.client.get("/api/sessions/branch/branches", params={"message_id": question["id"]})).json()
    assert len(branches["children"]) == 2
    await chat.client.patch("/api/sessions/branch", json={"leaf_id": answer["id"]})
    assert [m["id"] for m in await chat.messages("branch")] == [question["id"], answer["id"]]

    edited = {"id": question["id"], "role": "user", "parts": [{"type": "text", "text": "#branch who?"}]}
    body = {"id": "branch", "messages": [edited], "trigger": "submit-message", "messageId": question["id"]}
    await chat.whole(await chat.client.post("/api/chat", json=body))
    assert await chat.texts("branch") == ["#branch who?", "One."]
    tree = (await chat.client.get("/api/sessions/branch/tree")).json()
    assert len(tree["nodes"]) == 7


async def test_another_answer_is_asked_for_without_sending_the_question_again(chat):
    first = (await chat.say("anew", "#branch what?")).only("start")["messageId"]
    question = (await chat.messages("anew"))[0]["id"]
    for body in ({"session": "anew"}, {"id": "anew", "messages": []}, {"id": "anew", "messageId": question}):
        again = await chat.client.post("/api/chat", json={"trigger": "regenerate-message", **body})
        assert (await chat.whole(again)).only("start")["messageId"] != first
        assert await chat.texts("anew") == ["#branch what?", "One."]
    branches = (await chat.client.get("/api/sessions/anew/branches", params={"message_id": question})).json()
    assert len(branches["children"]) == 4
    nothing = await chat.client.post("/api/chat", json={"trigger": "regenerate-message", "session": "never"})
    assert nothing.status_code == 404


async def test_a_chinese_word_of_two_characters_is_found_in_all_conversations_and_by_the_model(chat):
    await chat.say("notes", "#note 请记住:客厅的墙是蓝色的,门是白色的。")
    hits = (await chat.client.get("/api/search", params={"q": "蓝色"})).json()["hits"]
    assert hits[0]["session_id"] == "notes"
    assert "\u2068蓝色\u2069" in hits[0]["excerpt"]
    read = await chat.say("elsewhere", "#look which colour has the wall?")
    assert "客厅的墙" in outputs(read)


async def test_a_fact_of_one_conversation_is_known_in_another_and_a_changed_fact_takes_its_place(chat):
    await chat.say("facts", "#learn we deploy with Kamal")
    await chat.say("facts-2", "#changed we have moved to Nomad")
    read = await chat.say("facts-3", "#ask how do we deploy?")
    assert read.text == "With Nomad."
    kept = (await chat.client.get("/api/memory")).json()["items"]
    assert [item["content"] for item in kept if item["topic"] == "deploy tool"] == ["The person deploys with Nomad."]


async def test_a_skill_is_loaded_when_the_model_asks_for_it(chat):
    read = await chat.say("skill", "#skill review this")
    assert "review" in outputs(read).lower()
    assert read.text == "Reviewed."


async def test_a_denial_reaches_the_model_as_such(chat):
    paused = await chat.say("denied", "#denied")
    request = paused.only("tool-approval-request")
    assert paused.only("tool-input-available")["input"]["title"] == "add subtracts"
    assert await chat.resumed("denied") is None
    read = await chat.answer_and_read("denied", call_id=request["toolCallId"], approved=False, error="not today")
    assert read.text == "Then not."
    (part,) = (p for p in (await chat.messages("denied"))[-1]["parts"] if p["type"] == "tool-solve_issue")
    assert part["state"] == "output-denied"
    assert part["approval"]["approved"] is False
    assert not [r for r in (await chat.client.get("/api/runs")).json()["runs"] if r["title"] == "add subtracts"]


async def test_an_approval_in_the_way_of_the_ai_sdk_carries_the_turn_on(chat):
    paused = await chat.say("approve", "#approve")
    message = (await chat.messages("approve"))[-1]
    parts = [
        {**p, "state": "approval-responded", "approval": {**p["approval"], "approved": True}} if p["type"] == "tool-solve_issue" else p
        for p in message["parts"]
    ]
    body = {"id": "approve", "messages": [{"id": message["id"], "role": "assistant", "parts": parts}], "trigger": "submit-message"}
    read = await chat.whole(await chat.client.post("/api/chat", json=body))
    assert read.only("start")["messageId"] == paused.only("start")["messageId"]
    assert "is opened" in read.only("tool-output-available")["output"]
    assert read.text == "It is on its way."


async def test_plain_text_tells_what_is_to_be_allowed_and_what_a_message_is_queued_behind(chat):
    asked = {"json": {"message": "#approve", "session": "terminal"}, "headers": {"Accept": "text/plain"}}
    paused = (await chat.client.post("/api/chat", **asked)).text
    call = 'solve_issue {"title": "add subtracts", "repo": "team/none"}'
    waits = f"waits for your consent to {call}; answer with POST /api/chat/terminal/answers "
    assert paused.startswith(f"[{waits}{{")
    body = json.loads(paused.strip().removesuffix("]").split("/answers ")[1])
    asked["json"] = {"message": "#plain next", "session": "terminal"}
    async with chat.client.stream("POST", "/api/chat", **asked) as answer:
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(f"[queued behind an answer that {waits}{json.dumps(body)}; or stop that with ")
        assert (await chat.client.post("/api/chat/terminal/answers", json=body)).status_code == 200
        assert [line async for line in lines] == ["Hello, 世界!"]


async def test_plain_text_tells_which_output_of_the_client_is_waited_for(chat):
    asked = {"json": {"message": "#client", "session": "wall", "tools": [CLOCK]}, "headers": {"Accept": "text/plain"}}
    paused = (await chat.client.post("/api/chat", **asked)).text
    assert paused.startswith("[waits for the output of read_clock {}; answer with POST /api/chat/wall/answers ")


async def test_a_turn_that_waits_can_be_read_again_by_its_name(chat):
    paused = await chat.say("reread", "#approve")
    turn = paused.only("start")["messageId"].removeprefix("answer-")
    again = await chat.whole(await chat.client.get("/api/chat/reread/stream", params={"turn": turn}))
    assert (again.kinds, again.chunks[-1]) == (paused.kinds, paused.chunks[-1])


async def test_a_tool_of_the_client_waits_for_its_output(chat):
    paused = await chat.say("client", "#client", tools=[CLOCK])
    asked = paused.only("tool-input-available")
    assert asked["toolName"] == "read_clock"
    assert "tool-approval-request" not in paused.kinds
    wrong = await chat.client.post("/api/chat/client/answers", json={"call_id": "nobody-1", "output": "x"})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "no-such-call")
    read = await chat.answer_and_read("client", call_id=asked["toolCallId"], output={"time": "12:00"})
    assert read.text == "Your clock is right."


async def test_a_turn_with_two_open_calls_waits_for_both(chat):
    paused = await chat.say("two", "#two", tools=[CLOCK])
    asked = {c["toolName"]: c["toolCallId"] for c in paused.chunks if c["type"] == "tool-input-available"}
    left = await chat.answer("two", call_id=asked["solve_issue"], approved=False)
    assert left["unanswered"] == [asked["read_clock"]]
    read = await chat.answer_and_read("two", call_id=asked["read_clock"], error="the clock is broken")
    assert read.text == "Both are known."
    assert await chat.resumed("two") is None
    for session, status in (("two", 200), ("client", 404)):
        again = await chat.client.get(f"/api/chat/{session}/stream", params={"turn": left["turn"]})
        assert again.status_code == status
    again = await chat.whole(await chat.client.get("/api/chat/two/stream", params={"turn": left["turn"]}))
    assert (again.text, again.kinds) == (read.text, read.kinds)
    assert again.only("tool-output-error")["errorText"] == "the clock is broken"


@pytest.mark.parametrize("mark", ["#broken", "#down"])
async def test_a_model_that_refuses_is_a_problem_with_a_status_and_the_conversation_stays_usable(chat, mark):
    session = f"refused-{mark[1:]}"
    answer = await chat.client.post("/api/chat", json={"message": mark, "session": session})
    assert answer.status_code == 502
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert await chat.resumed(session) is None


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("mark", ["#empty", "#blank"])
async def test_a_model_that_says_nothing_is_no_answer(chat, mark, limit):
    body = {"message": mark, "session": f"{mark[1:]}-{limit}", "max_model_calls": limit}
    answer = await chat.client.post("/api/chat", json=body)
    told = answer.text if mark == "#empty" else (await chat.whole(answer)).only("error")["errorText"]
    assert answer.status_code == (502 if mark == "#empty" else 200)
    assert "reply was empty" in told
    assert (await chat.say(body["session"], "#plain and now?")).text == "Hello, 世界!"


async def test_an_empty_reply_is_asked_for_once_more_and_is_an_error_after_what_was_shown(chat):
    assert (await chat.say("late", "#late")).text == "Here I am."
    read = await chat.say("mute", "#mute")
    assert read.only("tool-output-available")
    assert "reply was empty" in read.only("error")["errorText"]


async def test_a_stream_that_breaks_off_is_an_error_part_after_what_was_said_and_what_was_said_is_kept(chat):
    read = await chat.say("half", "#half")
    assert read.text.startswith("The half of ")
    assert "connection was lost" in read.only("error")["errorText"]
    assert (await chat.texts("half"))[-1].startswith("The half of ")


async def test_nobody_sees_what_belongs_to_somebody_else(chat, issuer):
    await chat.say("secret", "#plain the word is 葡萄")
    async with issuer.client(chat.running, "kim") as client:
        kim = Chat(chat.running, client)
        assert (await client.get("/api/sessions")).json()["sessions"] == []
        for path in ("", "/messages", "/tree", "/export", "/contexts"):
            assert (await client.get(f"/api/sessions/secret{path}")).status_code == 404, path
        assert (await client.delete("/api/sessions/secret")).status_code == 404
        assert (await client.get("/api/search", params={"q": "葡萄"})).json()["hits"] == []
        assert (await client.get("/api/memory")).json()["items"] == []
        assert await kim.resumed("secret") is None
        for place in ("ssh://git@example.org/x.git", "git@example.org:x.git", "/etc", "team/app"):
            refused = await client.post("/api/chat", json={"message": "#plain", "repository": place})
            assert (refused.status_code, refused.json()["code"]) == (403, "source-not-allowed"), place
        await kim.say("secret", "#plain mine")
        assert await kim.texts("secret") == ["#plain mine", "Hello, 世界!"]
    assert await chat.texts("secret") == ["#plain the word is 葡萄", "Hello, 世界!"]
