"""Sessions themselves over gRPC: creating, changing, listing (W2, W3, policy layers)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from foldline.v1 import model_pb2, policy_pb2, session_service_pb2

from tests.integration.host import Host
from tests.support.requests import create, user
from tests.support.server import Client, refused


def test_w2_a_session_created_many_times_at_once_is_one(client: Client, name: str) -> None:
    request = create(name, request_id=f"{name}-create")
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: client.session.CreateSession(request).session.session_id, range(16)))
    assert set(made) == {name}


def test_an_id_is_given_where_none_is_chosen_and_a_repeat_gives_the_same(client: Client) -> None:
    request = create("", request_id="unnamed")
    first = client.session.CreateSession(request).session.session_id
    assert first
    assert client.session.CreateSession(request).session.session_id == first


def test_a_second_session_of_the_same_id_is_refused(client: Client, name: str) -> None:
    client.session.CreateSession(create(name))
    assert refused(client.session.CreateSession, create(name)).reason == "SESSION_EXISTS"


def test_the_effective_policy_names_its_origins(client: Client, name: str) -> None:
    host = Host(client, name, target_fraction=0.4)
    effective = host.get().effective_policy
    assert effective.values.target_fraction == 0.4
    assert effective.origins["target_fraction"] == policy_pb2.POLICY_LAYER_SESSION
    assert effective.origins["threshold_fraction"] == policy_pb2.POLICY_LAYER_BUILT_IN


def test_an_update_changes_what_its_mask_names(client: Client, name: str) -> None:
    Host(client, name, target_fraction=0.4, min_progress=0.2)
    request = session_service_pb2.UpdateSessionRequest(session_id=name, policy=policy_pb2.Policy(target_fraction=0.3))
    request.update_mask.paths.extend(["policy.target_fraction", "policy.min_progress"])
    changed = client.session.UpdateSession(request).session.policy
    assert changed.target_fraction == 0.3
    assert not changed.HasField("min_progress")


def test_a_mask_clears_what_it_names_and_the_policy_does_not_hold(client: Client, name: str) -> None:
    """AIP-134: the whole policy, a group of knobs, the model."""
    Host(client, name, target_fraction=0.4, retention=policy_pb2.RetentionPolicy(turns=7, messages=9))
    request = session_service_pb2.UpdateSessionRequest(session_id=name)
    request.policy.retention.turns = 2
    request.update_mask.paths.append("policy.retention")
    changed = client.session.UpdateSession(request).session.policy
    assert (changed.target_fraction, changed.retention) == (0.4, policy_pb2.RetentionPolicy(turns=2))
    request.update_mask.paths[:] = ["policy", "model"]
    session = client.session.UpdateSession(request).session
    assert session.policy == policy_pb2.Policy(retention=policy_pb2.RetentionPolicy(turns=2))
    assert not session.model.model


def test_a_mask_that_names_no_knob_is_refused(client: Client, name: str) -> None:
    Host(client, name)
    request = session_service_pb2.UpdateSessionRequest(session_id=name)
    request.update_mask.paths.append("policy.retention.tuns")
    refusal = refused(client.session.UpdateSession, request)
    assert (refusal.reason, refusal.metadata["field"]) == ("FIELD_VALIDATION", "update_mask")


def test_a_policy_that_cannot_hold_is_refused_whole(client: Client, name: str) -> None:
    """4.2: T <= 0 and reserve >= W, for the session's own model."""
    request = create(name)
    request.model.CopyFrom(model_pb2.ModelRef(provider="openai", model="small"))
    request.policy.output_reserve_tokens = 4_000
    assert refused(client.session.CreateSession, request).reason == "FIELD_VALIDATION"
    assert refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id=name)).reason == (
        "SESSION_NOT_FOUND"
    )


def test_a_knob_whose_effect_is_not_there_yet_is_refused(client: Client, name: str) -> None:
    request = create(name)
    request.policy.archive.retention.FromSeconds(86_400)
    refusal = refused(client.session.CreateSession, request)
    assert (refusal.code, refusal.reason) == ("UNIMPLEMENTED", "NOT_YET")
    assert refusal.metadata["method"] == "policy.archive.retention"


def test_w3_a_stale_revision_is_aborted_with_both_numbers(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("one"), expected_revision=0)
    refusal = refused(host.append, user("two"), expected_revision=0)
    assert (refusal.code, refusal.reason) == ("ABORTED", "REVISION_MISMATCH")
    assert (refusal.metadata["expected"], refusal.metadata["actual"]) == ("0", "1")


def test_revisions_come_newest_first_page_by_page(client: Client, name: str) -> None:
    host = Host(client, name)
    for number in range(5):
        offset = host.append(user(f"text {number}")).first_offset
        client.session.EditRows(
            session_service_pb2.EditRowsRequest(session_id=name, first_offset=offset, last_offset=offset)
        )
    request = session_service_pb2.ListRevisionsRequest(session_id=name, page_size=2)
    found = []
    while True:
        page = client.session.ListRevisions(request)
        found += [r.revision for r in page.revisions]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == [10, 8, 6, 4, 2, 0]


def test_w6_sessions_page_by_label(client: Client, name: str) -> None:
    for number in range(7):
        client.session.CreateSession(create(f"{name}-{number}", labels={"team": name}))
    request = session_service_pb2.ListSessionsRequest(page_size=3, labels={"team": name})
    found = []
    while True:
        page = client.session.ListSessions(request)
        found += [s.session_id for s in page.sessions]
        if not page.next_page_token:
            break
        assert len(page.sessions) == 3
        request.page_token = page.next_page_token
    assert found == [f"{name}-{number}" for number in range(7)]
    request.labels["team"] = "another"
    assert refused(client.session.ListSessions, request).reason == "PAGE_TOKEN_MISMATCH"
