use super::*;

/// Each session is of a client of its own.
pub(super) fn client(token: &str) -> IpAddr {
    IpAddr::from([10, 0, 0, token.as_bytes()[0]])
}

/// What a call is carried out by, and whose it is.
pub(super) fn called(token: &'static str) -> Result<(&'static str, IpAddr), Refusal> {
    Ok((token, client(token)))
}

const SECOND: Duration = Duration::from_secs(1);

fn small() -> Limits {
    Limits {
        sessions_max: 3,
        idle_max: 10 * SECOND,
        session_max: 60 * SECOND,
        session_bytes_max: 100,
        bytes_max: 150,
        calls_max: 3,
        scans_max: 1,
        session_calls_max: 2,
        remember_for: 30 * SECOND,
        ends_max: 3,
    }
}

/// Sessions that have begun at 0; the transaction of each is its own name.
fn with(tokens: &[&'static str]) -> Sessions<&'static str> {
    let mut sessions = Sessions::new(small());
    for token in tokens {
        sessions.begin(client(token)).unwrap();
        sessions.begun(Duration::ZERO, client(token), (*token).to_owned(), *token);
    }
    sessions
}

fn at(seconds: u32) -> Duration {
    SECOND * seconds
}

fn ts(ts: u64) -> Timestamp {
    Timestamp::from_u64(ts)
}

#[test]
fn sessions_that_are_about_to_begin_count() {
    let mut sessions = with(&["a", "b"]);
    sessions.begin(client("c")).unwrap();
    let full = Err(Refusal::Sessions(Full::All(3)));
    assert_eq!(sessions.begin(client("d")), full);
    sessions.not_begun(client("c"));
    sessions.begin(client("c")).unwrap();
    sessions.begun(at(1), client("c"), "c".into(), "c");
    assert_eq!(sessions.begin(client("d")), full);
    sessions.finish(at(1), "a", SessionEnd::RolledBack);
    assert_eq!(sessions.begin(client("d")), Ok(()));
}

#[test]
fn a_session_without_a_call_expires_and_says_why() {
    let mut sessions = with(&["a", "b"]);
    assert_eq!(sessions.call(at(5), "b"), called("b"));
    sessions.call_done(at(6), "b", client("b"));
    assert_eq!(sessions.expire(at(9)), []);
    let expired = Refusal::Ended(SessionEnd::Expired(Expiry::Idle));
    // Before anybody has ended it as well.
    assert_eq!(sessions.call(at(10), "a"), Err(expired.clone()));
    assert_eq!(
        sessions.expire(at(10)),
        [("a", SessionEnd::Expired(Expiry::Idle))]
    );
    assert_eq!(sessions.call(at(11), "a"), Err(expired.clone()));
    assert_eq!(sessions.commit(at(11), "a"), Err(expired));
    assert_eq!(sessions.rollback(at(11), "a"), Ok(None));
    assert_eq!(sessions.expire(at(15)), []);
    assert_eq!(
        sessions.expire(at(16)),
        [("b", SessionEnd::Expired(Expiry::Idle))]
    );
    // It isn't remembered for ever.
    assert_eq!(sessions.expire(at(40)), []);
    assert_eq!(sessions.call(at(40), "a"), Err(Refusal::Unknown));
    assert!(sessions.is_empty());
}

#[test]
fn a_call_under_way_keeps_a_session_but_not_beyond_its_whole_time() {
    let mut sessions = with(&["a"]);
    sessions.call(at(1), "a").unwrap();
    assert_eq!(sessions.expire(at(59)), []);
    assert_eq!(
        sessions.expire(at(60)),
        [("a", SessionEnd::Expired(Expiry::Total))]
    );
    sessions.call_done(at(61), "a", client("a"));
    let expired = SessionEnd::Expired(Expiry::Total);
    assert_eq!(sessions.why_gone("a"), Some(Refusal::Ended(expired)));
}

#[test]
fn a_scan_keeps_a_session_only_while_its_reader_takes_something() {
    let mut sessions = with(&["a", "b"]);
    assert_eq!(sessions.scan(at(1), "a"), called("a"));
    assert_eq!(sessions.scan(at(1), "b"), Err(Refusal::Scans(Full::All(1))));
    sessions.scan_goes_on(at(9), "a");
    assert_eq!(
        sessions.expire(at(18)),
        [("b", SessionEnd::Expired(Expiry::Idle))]
    );
    assert_eq!(
        sessions.expire(at(19)),
        [("a", SessionEnd::Expired(Expiry::Idle))]
    );
    // What it took is free only now.
    sessions.begin(client("c")).unwrap();
    sessions.begun(at(19), client("c"), "c".into(), "c");
    assert_eq!(
        sessions.scan(at(19), "c"),
        Err(Refusal::Scans(Full::All(1)))
    );
    sessions.scan_done(at(20), "a", client("a"));
    assert_eq!(sessions.scan(at(20), "c"), called("c"));
}

/// Its reader has taken nothing for too long, and its end was reported, but it hasn't expired yet.
#[test]
fn the_end_of_a_scan_brings_no_session_back() {
    let mut sessions = with(&["a"]);
    assert_eq!(sessions.scan(at(1), "a"), called("a"));
    assert!(matches!(sessions.rollback(at(11), "a"), Ok(None)));
    sessions.scan_done(at(11), "a", client("a"));
    assert!(sessions.commit(at(12), "a").is_err());
    assert_eq!(
        sessions.expire(at(12)),
        [("a", SessionEnd::Expired(Expiry::Idle))]
    );
}

#[test]
fn calls_under_way_are_bounded_for_each_session_and_in_all() {
    let mut sessions = with(&["a", "b", "c"]);
    sessions.call(at(1), "a").unwrap();
    sessions.call(at(1), "a").unwrap();
    assert_eq!(sessions.call(at(1), "a"), Err(Refusal::SessionCalls(2)));
    assert_eq!(sessions.scan(at(1), "a"), Err(Refusal::SessionCalls(2)));
    sessions.call(at(1), "b").unwrap();
    assert_eq!(sessions.call(at(1), "c"), Err(Refusal::Calls(Full::All(3))));
    // Also the call of a session that has ended meanwhile gives its place back.
    sessions.rollback(at(1), "a").unwrap();
    assert_eq!(sessions.call(at(1), "c"), Err(Refusal::Calls(Full::All(3))));
    sessions.call_done(at(1), "a", client("a"));
    assert_eq!(sessions.call(at(1), "c"), called("c"));
}

#[test]
fn what_is_written_is_bounded_for_each_session_and_in_all() {
    let mut sessions = with(&["a", "b"]);
    sessions.check_room("a", 100).unwrap();
    assert_eq!(
        sessions.check_room("a", 101),
        Err(Refusal::SessionBytes(100))
    );
    sessions.written("a", 100);
    assert_eq!(sessions.check_room("a", 1), Err(Refusal::SessionBytes(100)));
    sessions.check_room("b", 50).unwrap();
    assert_eq!(
        sessions.check_room("b", 51),
        Err(Refusal::Bytes(Full::All(150)))
    );
    // A cell that was written again takes no more than before.
    sessions.written("a", 60);
    sessions.check_room("b", 90).unwrap();
    sessions.finish(at(1), "a", SessionEnd::Committed(ts(7)));
    assert_eq!(sessions.bytes(), 0);
    let gone = Refusal::Ended(SessionEnd::Committed(ts(7)));
    assert_eq!(sessions.check_room("a", 1), Err(gone));
}

#[test]
fn a_commit_is_carried_out_once_and_answered_as_often_as_it_is_asked() {
    let mut sessions = with(&["a"]);
    // A write that went along is refused.
    assert_eq!(sessions.commit(at(1), "a"), Ok(CommitStep::Begin("a")));
    sessions.commit_not_begun(at(1), "a");
    assert_eq!(sessions.call(at(1), "a"), called("a"));
    sessions.call_done(at(1), "a", client("a"));
    assert_eq!(sessions.commit(at(1), "a"), Ok(CommitStep::Begin("a")));
    for refused in [
        sessions.commit(at(1), "a").map(drop),
        sessions.call(at(1), "a").map(drop),
        sessions.rollback(at(1), "a").map(drop),
    ] {
        assert_eq!(refused, Err(Refusal::Committing));
    }
    assert_eq!(sessions.outcome("a"), Ok(KnownEnd::Open));
    // Nothing ends a commit but its own end.
    assert_eq!(sessions.expire(at(100)), []);
    assert_eq!(sessions.end_all(at(100)), Vec::<&str>::new());
    let committed = SessionEnd::Committed(ts(7));
    sessions.finish(at(100), "a", committed.clone());
    assert_eq!(sessions.commit(at(101), "a"), Ok(CommitStep::Done(ts(7))));
    let ended = Refusal::Ended(committed.clone());
    assert_eq!(sessions.rollback(at(101), "a"), Err(ended.clone()));
    assert_eq!(sessions.call(at(101), "a"), Err(ended));
    // Whatever comes late changes nothing.
    assert_eq!(sessions.finish(at(101), "a", SessionEnd::Aborted), None);
    assert_eq!(sessions.outcome("a"), Ok(KnownEnd::Ended(committed)));
}

#[test]
fn a_read_that_finds_the_transaction_rolled_back_ends_it_unless_its_commit_is_under_way() {
    let mut sessions = with(&["a", "b"]);
    assert_eq!(sessions.abort(at(1), "a", SessionEnd::Aborted), Some("a"));
    let aborted = Refusal::Ended(SessionEnd::Aborted);
    assert_eq!(sessions.commit(at(1), "a"), Err(aborted));
    assert_eq!(sessions.rollback(at(1), "a"), Ok(None));
    sessions.commit(at(1), "b").unwrap();
    assert_eq!(sessions.abort(at(1), "b", SessionEnd::Aborted), None);
    sessions.finish(at(2), "b", SessionEnd::Committed(ts(7)));
    assert_eq!(sessions.commit(at(2), "b"), Ok(CommitStep::Done(ts(7))));
}

#[test]
fn an_unknown_outcome_is_never_taken_for_an_abort() {
    let mut sessions = with(&["a"]);
    sessions.commit(at(1), "a").unwrap();
    let unknown = SessionEnd::Unknown {
        start_ts: ts(5),
        primary: Cell::new(percolator_client::TableId(1), "r", "c"),
    };
    sessions.finish(at(2), "a", unknown.clone());
    let ended = Refusal::Ended(unknown);
    assert_eq!(sessions.commit(at(3), "a"), Err(ended.clone()));
    assert_eq!(sessions.rollback(at(3), "a"), Err(ended.clone()));
    assert_eq!(sessions.call(at(3), "a"), Err(ended));
    sessions.found_out("a", SessionEnd::Committed(ts(9)));
    assert_eq!(sessions.commit(at(3), "a"), Ok(CommitStep::Done(ts(9))));
    // It is known now.
    sessions.found_out("a", SessionEnd::Aborted);
    assert_eq!(sessions.commit(at(3), "a"), Ok(CommitStep::Done(ts(9))));
}

#[test]
fn a_proxy_that_stops_begins_nothing_and_lets_its_sessions_end() {
    let mut sessions = with(&["a", "b", "c"]);
    sessions.stop();
    assert_eq!(sessions.begin(client("d")), Err(Refusal::Stopping));
    assert_eq!(sessions.call(at(1), "a"), called("a"));
    sessions.call_done(at(1), "a", client("a"));
    sessions.rollback(at(2), "a").unwrap();
    sessions.commit(at(2), "b").unwrap();
    assert_eq!(sessions.end_all(at(3)), ["c"]);
    let stopped = Refusal::Ended(SessionEnd::Stopped);
    assert_eq!(sessions.call(at(3), "c"), Err(stopped));
    assert!(!sessions.is_empty());
    sessions.finish(at(4), "b", SessionEnd::Committed(ts(7)));
    assert!(sessions.is_empty());
}

#[test]
fn so_many_ends_are_remembered_and_no_more() {
    let mut sessions = with(&[]);
    for token in ["a", "b", "c", "d"] {
        sessions.begin(client(token)).unwrap();
        sessions.begun(at(1), client(token), token.into(), token);
        sessions.rollback(at(1), token).unwrap();
    }
    assert_eq!(sessions.rollback(at(1), "a"), Err(Refusal::Unknown));
    assert_eq!(sessions.rollback(at(1), "b"), Ok(None));
}

#[test]
fn no_client_gets_more_than_is_left_for_others() {
    let mut sessions = Sessions::new(Limits {
        sessions_max: 4,
        ..small()
    });
    let (greedy, other) = (client("g"), client("o"));
    let share = |has, most| Full::Share {
        client: greedy,
        has,
        most,
    };
    for token in ["a", "b"] {
        sessions.begin(greedy).unwrap();
        sessions.begun(at(0), greedy, token.into(), token);
    }
    assert_eq!(sessions.begin(greedy), Err(Refusal::Sessions(share(2, 4))));
    sessions.begin(other).unwrap();
    sessions.begun(at(0), other, "o".into(), "o");
    // Of three calls.
    sessions.call(at(1), "a").unwrap();
    sessions.call(at(1), "a").unwrap();
    let refused = Refusal::Calls(share(2, 3));
    assert_eq!(sessions.call(at(1), "b"), Err(refused));
    assert_eq!(sessions.call(at(1), "o"), Ok(("o", other)));
    // Of 150 bytes.
    sessions.written("a", 60);
    assert_eq!(sessions.check_room("b", 15), Ok(()));
    let refused = Refusal::Bytes(share(60, 150));
    assert_eq!(sessions.check_room("b", 31), Err(refused));
    assert_eq!(sessions.check_room("o", 90), Ok(()));
}
