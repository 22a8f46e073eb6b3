use super::super::tests::{called, client};
use super::super::{CommitStep, Full, KnownEnd, Limits};
use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const LOST: Refusal = Refusal::Ended(SessionEnd::ParticipantLost);
const GONE: Refusal = Refusal::Ended(SessionEnd::ManagerGone);

/// A manager "m" and these participants, from second 0.
fn with(participants: &[&'static str]) -> Sessions<&'static str> {
    let mut sessions = Sessions::new(Limits {
        sessions_max: 4,
        session_bytes_max: 100,
        ..Limits::default()
    });
    sessions.begin(client("m")).unwrap();
    sessions.begun(at(0), client("m"), "m".into(), "m");
    for token in participants {
        assert_eq!(sessions.join(at(0), client(token), "m"), Ok("m"));
        sessions
            .joined(at(0), client(token), "m", (*token).into(), *token)
            .unwrap();
    }
    sessions
}

fn finish(sessions: &mut Sessions<&'static str>, token: &'static str) -> Result<(), Refusal> {
    let begin = FinishStep::Begin {
        txn: token,
        is_sealed: false,
    };
    assert_eq!(sessions.finishing(at(1), token)?, begin);
    // Another copy of the call.
    assert_eq!(sessions.finishing(at(1), token), Err(Refusal::Committing));
    assert_eq!(sessions.give(at(1), token)?, "m");
    assert_eq!(sessions.finishing(at(1), token), Ok(FinishStep::Done));
    Ok(())
}

#[test]
fn a_transaction_is_committed_when_all_have_finished() {
    let mut sessions = with(&["a", "b"]);
    sessions.written("a", 10);
    sessions.written("m", 5);
    finish(&mut sessions, "a").unwrap();
    assert_eq!(sessions.bytes(), 15);
    // What was given counts, whatever the manager writes.
    sessions.written("m", 7);
    assert_eq!(sessions.bytes(), 17);
    finish(&mut sessions, "b").unwrap();
    assert_eq!(sessions.commit(at(2), "m"), Ok(CommitStep::Begin("m")));
    assert_eq!(
        sessions.join(at(2), client("j"), "m"),
        Err(Refusal::TooLate)
    );
    let end = SessionEnd::Committed(percolator_client::Timestamp::from_u64(7));
    assert_eq!(sessions.finish(at(2), "m", end), Some("m"));
    assert_eq!(
        sessions.join(at(2), client("j"), "m"),
        Err(Refusal::TooLate)
    );
    assert_eq!((sessions.bytes(), sessions.open()), (0, 0));
}

/// What such a participant would write, the commit doesn't wait for.
#[test]
fn one_that_began_to_join_before_the_commit_and_is_there_after_it_is_too_late() {
    for is_done in [false, true] {
        let mut sessions = with(&[]);
        assert_eq!(sessions.join(at(1), client("j"), "m"), Ok("m"));
        assert_eq!(sessions.commit(at(1), "m"), Ok(CommitStep::Begin("m")));
        if is_done {
            let end = SessionEnd::Committed(percolator_client::Timestamp::from_u64(7));
            sessions.finish(at(1), "m", end);
        }
        let joined = sessions.joined(at(1), client("j"), "m", "j".into(), "j");
        assert_eq!(joined, Err(Refusal::TooLate));
        assert_eq!(sessions.call(at(1), "j"), Err(Refusal::Unknown));
        // Its room is given back.
        assert_eq!(sessions.open(), usize::from(!is_done));
    }
}

#[test]
fn a_participant_that_has_not_finished_aborts_the_commit() {
    let mut sessions = with(&["a", "b"]);
    finish(&mut sessions, "a").unwrap();
    assert_eq!(sessions.commit(at(2), "m"), Err(LOST));
    // It stays so, though the other one finishes.
    assert_eq!(finish(&mut sessions, "b"), Err(GONE));
    sessions.commit_not_begun(at(1), "b");
    assert_eq!(sessions.commit(at(2), "m"), Err(LOST));
    let over = sessions.expire(at(2));
    assert!(
        over.contains(&("m", SessionEnd::ParticipantLost)),
        "{over:?}"
    );
    assert_eq!(sessions.finishing(at(2), "b"), Err(GONE));
}

#[test]
fn a_participant_that_ends_without_finishing_aborts_the_transaction() {
    for end in [SessionEnd::RolledBack, SessionEnd::Aborted] {
        let mut sessions = with(&["a", "b"]);
        sessions.finish(at(1), "a", end);
        assert_eq!(sessions.call(at(1), "m"), Err(LOST));
        assert_eq!(sessions.join(at(1), client("j"), "m"), Err(LOST));
        let mut over = sessions.expire(at(1));
        over.sort_by_key(|(txn, _)| *txn);
        assert_eq!(over[0].0, "m");
        // The participant expires with it.
        sessions.expire(at(1));
        assert_eq!(sessions.call(at(1), "b"), Err(GONE));
        assert_eq!(sessions.rollback(at(1), "b"), Ok(None));
        assert_eq!(sessions.open(), 0);
    }
    // Also one that nobody calls any more.
    let mut sessions = with(&["a"]);
    sessions.call(at(25), "m").unwrap();
    sessions.call_done(at(25), "m", client("m"));
    sessions.expire(at(30));
    assert_eq!(sessions.commit(at(31), "m"), Err(LOST));
}

#[test]
fn a_manager_that_ends_takes_its_participants_along() {
    let mut sessions = with(&["a"]);
    sessions.finish(at(1), "m", SessionEnd::RolledBack);
    assert_eq!(sessions.call(at(1), "a"), Err(GONE));
    assert_eq!(sessions.give(at(1), "a"), Err(GONE));
    assert_eq!(sessions.expire(at(1)), [("a", SessionEnd::ManagerGone)]);
    let gone = Ok(KnownEnd::Ended(SessionEnd::ManagerGone));
    assert_eq!(sessions.outcome("a"), gone);
    // It may end between the two steps of a participant that joins.
    let mut sessions = with(&[]);
    sessions.join(at(0), client("a"), "m").unwrap();
    sessions.finish(at(1), "m", SessionEnd::RolledBack);
    let late = sessions.joined(at(1), client("a"), "m", "a".into(), "a");
    assert_eq!(late, Err(Refusal::Ended(SessionEnd::RolledBack)));
    assert!(sessions.is_empty());
}

#[test]
fn calls_of_participants_keep_the_manager() {
    let mut sessions = with(&["a"]);
    for second in [20, 40, 60] {
        sessions.call(at(second), "a").unwrap();
        sessions.call_done(at(second), "a", client("a"));
        assert_eq!(sessions.expire(at(second)), []);
    }
    assert_eq!(sessions.call(at(61), "m"), called("m"));
}

#[test]
fn roles_are_not_mixed_up() {
    let mut sessions = with(&["a"]);
    assert_eq!(sessions.commit(at(1), "a"), Err(Refusal::IsParticipant));
    assert_eq!(
        sessions.join(at(1), client("j"), "a"),
        Err(Refusal::IsParticipant)
    );
    assert_eq!(sessions.finishing(at(1), "m"), Err(Refusal::NoParticipant));
    assert_eq!(
        sessions.join(at(1), client("j"), "x"),
        Err(Refusal::Unknown)
    );
    // A participant of another proxy's session.
    sessions.begin(client("r")).unwrap();
    sessions.joined_elsewhere(at(1), client("r"), "r".into(), "r");
    assert_eq!(sessions.commit(at(1), "r"), Err(Refusal::IsParticipant));
    assert_eq!(
        sessions.join(at(1), client("j"), "r"),
        Err(Refusal::IsParticipant)
    );
}

#[test]
fn what_may_be_at_another_proxy_is_not_changed_and_not_said_to_be_rolled_back() {
    let begun = |is_sealed| {
        Ok(FinishStep::Begin {
            txn: "r",
            is_sealed,
        })
    };
    let mut sessions = with(&[]);
    sessions.begin(client("r")).unwrap();
    sessions.joined_elsewhere(at(1), client("r"), "r".into(), "r");
    // Nothing was sent yet.
    assert_eq!(sessions.finishing(at(1), "r"), begun(false));
    sessions.commit_not_begun(at(1), "r");
    assert_eq!(sessions.call(at(1), "r"), called("r"));
    sessions.call_done(at(1), "r", client("r"));
    // It was, and no answer came.
    assert_eq!(sessions.finishing(at(1), "r"), begun(false));
    sessions.seal("r");
    sessions.commit_not_begun(at(2), "r");
    assert_eq!(sessions.call(at(2), "r"), Err(Refusal::Committing));
    assert_eq!(sessions.rollback(at(2), "r"), Err(Refusal::Committing));
    assert_eq!(sessions.finishing(at(2), "r"), begun(true));
    assert_eq!(sessions.finishing(at(2), "r"), Err(Refusal::Committing));
    sessions.commit_not_begun(at(2), "r");
    let over = sessions.expire(at(40));
    assert!(over.iter().any(|(txn, _)| *txn == "r"), "{over:?}");
    let unknown = KnownEnd::Ended(SessionEnd::HandOverUnknown);
    assert_eq!(sessions.outcome("r"), Ok(unknown));
}

#[test]
fn a_manager_whose_time_is_over_does_not_come_back() {
    let idle = || Refusal::Ended(SessionEnd::Expired(crate::sessions::Expiry::Idle));
    let mut sessions = with(&["a", "b"]);
    // A scan keeps no session, but its participant's.
    sessions.call(at(1), "a").unwrap();
    sessions.call(at(20), "b").unwrap();
    sessions.call_done(at(20), "b", client("b"));
    assert_eq!(sessions.call(at(50), "m"), Err(idle()));
    sessions.call_done(at(50), "a", client("a"));
    sessions.call(at(50), "a").unwrap();
    assert_eq!(sessions.call(at(50), "m"), Err(idle()));
    // What the reader of a scan takes counts as well.
    let mut sessions = with(&["a"]);
    sessions.scan(at(20), "a").unwrap();
    sessions.scan_goes_on(at(40), "a");
    assert_eq!(sessions.call(at(60), "m"), called("m"));
}

#[test]
fn limits_hold_for_all_of_a_transaction() {
    let mut sessions = with(&["a", "b"]);
    sessions.written("a", 60);
    sessions.written("b", 60);
    finish(&mut sessions, "a").unwrap();
    assert_eq!(finish(&mut sessions, "b"), Err(Refusal::SessionBytes(100)));
    assert_eq!(sessions.bytes(), 120);
    sessions.commit_not_begun(at(1), "b");
    // With fewer bytes it may finish still.
    sessions.written("b", 30);
    finish(&mut sessions, "b").unwrap();
    sessions.begin(client("x")).unwrap();
    sessions.begun(at(1), client("x"), "x".into(), "x");
    sessions.join(at(1), client("c"), "m").unwrap();
    sessions.join(at(1), client("d"), "m").unwrap();
    let full = Err(Refusal::Sessions(Full::All(4)));
    assert_eq!(sessions.join(at(1), client("e"), "m"), full);
}
