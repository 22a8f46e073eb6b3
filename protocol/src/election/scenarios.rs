//! Races that are too rare for the model: a takeover's swap arrives after its process is dead, and others have promised since.

use super::mutants::{self, ElectionMutant};
use super::*;
use crate::types::Timestamp;

const TERM: u64 = 4;

fn member(replica: u64, incarnation: u64) -> Member {
    Member {
        name: format!("tso-{replica}"),
        address: format!("here:{replica}"),
        incarnation,
        replica,
    }
}

fn peer(replica: u64) -> Peer {
    let address = format!("here:{replica}");
    Peer { replica, address }
}

/// Replica 1 leads, and only these could take over.
fn led(promisers: &[u64]) -> StoredLeadership {
    let value = Leadership {
        term: TERM,
        limit: Timestamp::from_millis(1_000),
        register: 7,
        holder: Some(member(1, 10)),
        promisers: promisers.iter().map(|replica| peer(*replica)).collect(),
        swap: SwapName {
            incarnation: 10,
            sequence: 1,
        },
    };
    StoredLeadership { version: 5, value }
}

/// The leader's request to a replica.
fn request(to: u64) -> PromiseRequest {
    PromiseRequest {
        register: 7,
        to,
        term: TERM,
        incarnation: 10,
        limit: Timestamp::from_millis(2_000),
    }
}

fn start(member: Member, dead: &[u64]) -> Election {
    Election::new(member, dead.to_vec(), Timing::default())
}

fn load(election: &mut Election, now_ms: u64, stored: &StoredLeadership) {
    assert_eq!(election.poll(now_ms), Some(Command::Load));
    election.loaded(now_ms, Ok(Some(stored.clone())));
}

/// When it sends a swap, if the register stays as it is for so long, and what it stores.
fn takes_over(
    election: &mut Election,
    from_ms: u64,
    for_ms: u64,
    stored: &StoredLeadership,
) -> Option<(u64, Leadership)> {
    swaps(election, from_ms, for_ms, Some(stored))
}

/// The same of a register that may have no value.
fn swaps(
    election: &mut Election,
    from_ms: u64,
    for_ms: u64,
    stored: Option<&StoredLeadership>,
) -> Option<(u64, Leadership)> {
    for now_ms in (from_ms..from_ms + for_ms).step_by(10) {
        match election.poll(now_ms) {
            Some(Command::Load) => election.loaded(now_ms, Ok(stored.cloned())),
            Some(Command::Swap { value, .. }) => return Some((now_ms, value)),
            None => {}
        }
    }
    None
}

/// The takeover of replica 2 from `stored`, whose process dies at once.
fn late_takeover(stored: &StoredLeadership) -> StoredLeadership {
    let mut candidate = start(member(2, 20), &[]);
    load(&mut candidate, 0, stored);
    let (at_ms, value) = takes_over(&mut candidate, 10, 5_000, stored).unwrap();
    assert_eq!(at_ms, 3_000);
    StoredLeadership { version: 6, value }
}

/// Replica 2 promises, starts again, and finds a takeover of an earlier start of its own. Returns when it follows that up.
fn second_start_takes_over_after_promise_ms() -> u64 {
    let stored = led(&[2]);
    let late = late_takeover(&stored);
    let mut promising = start(member(2, 21), &[20]);
    load(&mut promising, 10_000, &stored);
    let record = promising.promise(10_000, &request(2)).unwrap();
    let mut restarted = start(member(2, 22), &[20, 21]);
    restarted.restore(10_100, record);
    load(&mut restarted, 10_100, &late);
    let (at_ms, _) = takes_over(&mut restarted, 10_100, 9_000, &late).unwrap();
    at_ms - 10_000
}

#[test]
fn a_start_is_bound_by_what_an_earlier_one_has_promised() {
    let binds_ms = Timing::default().takeover_ms;
    assert!(second_start_takes_over_after_promise_ms() >= binds_ms);
    mutants::set(Some(ElectionMutant::PromiseForgotten));
    assert!(second_start_takes_over_after_promise_ms() < Timing::default().right_ms);
    mutants::set(None);
}

/// Whether a replica that has promised nothing takes over from a late takeover, while the leader of before goes on.
fn stranger_takes_over() -> bool {
    let late = late_takeover(&led(&[2]));
    let mut stranger = start(member(3, 30), &[]);
    load(&mut stranger, 4_000, &late);
    takes_over(&mut stranger, 4_000, 60_000, &late).is_some()
}

#[test]
fn a_takeover_lets_no_replica_in_that_has_promised_nothing() {
    assert_eq!(late_takeover(&led(&[2])).value.promisers, [peer(1)]);
    assert!(!stranger_takes_over());
    mutants::set(Some(ElectionMutant::TakeoverForgetsPromisers));
    assert!(stranger_takes_over());
    mutants::set(None);
}

#[test]
fn only_a_standby_that_knows_no_later_leader_promises() {
    let stored = led(&[2]);
    let mut standby = start(member(2, 20), &[]);
    assert_eq!(
        standby.promise(0, &request(2)),
        None,
        "it knows no register"
    );
    load(&mut standby, 0, &stored);
    let kept = standby.promise(5, &request(2)).unwrap();
    assert_eq!((kept.limit.physical_ms(), kept.is_bound), (2_000, true));
    let refused = [
        PromiseRequest {
            to: 3,
            ..request(2)
        },
        PromiseRequest {
            register: 8,
            ..request(2)
        },
        PromiseRequest {
            term: TERM - 1,
            ..request(2)
        },
        PromiseRequest {
            incarnation: 11,
            ..request(2)
        },
    ];
    for request in refused {
        assert_eq!(standby.promise(10, &request), None, "{request:?}");
    }
    // Its own swap is under way from here on.
    let (at_ms, _) = takes_over(&mut standby, 10, 5_000, &stored).unwrap();
    assert!(at_ms >= 5 + Timing::default().takeover_ms, "{at_ms} ms");
    assert_eq!(standby.promise(at_ms, &request(2)), None);
    standby.swapped(at_ms, SwapResult::Unknown);
    assert_eq!(standby.promise(at_ms, &request(2)), None);
}

#[test]
fn a_start_that_has_not_read_the_register_promises_by_its_folder() {
    let mut standby = start(member(2, 20), &[]);
    load(&mut standby, 0, &led(&[2]));
    let record = standby.promise(0, &request(2)).unwrap();
    let mut restarted = start(member(2, 21), &[20]);
    restarted.restore(0, record);
    assert_eq!(restarted.promise(0, &request(2)), Some(record));
    let other_register = PromiseRequest {
        register: 8,
        ..request(2)
    };
    assert_eq!(restarted.promise(0, &other_register), None);
}

/// Replica 2 takes over and dies before its folder knows. Returns whether it has led, and whether its next start, which
/// can't read the register, promises to the leader of before.
fn dies_before_its_term_is_kept() -> (bool, bool) {
    let stored = led(&[2]);
    let mut leader = start(member(2, 20), &[]);
    load(&mut leader, 0, &stored);
    let record = leader.promise(0, &request(2)).unwrap();
    let (at_ms, _) = takes_over(&mut leader, 10, 5_000, &stored).unwrap();
    leader.swapped(at_ms, SwapResult::Done(6));
    let has_led = leader.leads(at_ms);
    let mut restarted = start(member(2, 21), &[20]);
    restarted.restore(at_ms, record);
    let promises = restarted.promise(at_ms, &request(2)).is_some();
    // With the record of its term it would lead, and its next start would promise nothing.
    let round = leader.ask_promises(at_ms, Timestamp::ZERO).unwrap();
    leader.kept(&round.record);
    assert!(leader.leads(at_ms));
    let mut restarted = start(member(2, 21), &[20]);
    restarted.restore(at_ms, round.record);
    assert_eq!(restarted.promise(at_ms, &request(2)), None);
    (has_led, promises)
}

#[test]
fn a_leader_acts_when_its_folder_keeps_its_term() {
    assert_eq!(dies_before_its_term_is_kept(), (false, true));
    mutants::set(Some(ElectionMutant::TermNotKept));
    assert_eq!(dies_before_its_term_is_kept(), (true, true));
    mutants::set(None);
}

/// Replica 2 takes over, its folder doesn't take the term, and it is to end.
fn ends_before_its_term_is_kept() -> Option<Leadership> {
    let stored = led(&[2]);
    let mut leader = start(member(2, 20), &[]);
    load(&mut leader, 0, &stored);
    let (at_ms, value) = takes_over(&mut leader, 10, 5_000, &stored).unwrap();
    leader.swapped(at_ms, SwapResult::Done(6));
    leader.hand_over();
    let stored = StoredLeadership { version: 6, value };
    swaps(&mut leader, at_ms, 5_000, Some(&stored)).map(|(_, value)| value)
}

/// Its list ends what the leader before was promised: without it, replica 2 may promise that again when it starts anew.
#[test]
fn a_leader_whose_folder_has_not_its_term_hands_nothing_over() {
    assert_eq!(ends_before_its_term_is_kept(), None);
    mutants::set(Some(ElectionMutant::HandedOverUnkept));
    assert!(ends_before_its_term_is_kept().is_some());
    mutants::set(None);
}

/// When a standby that has promised takes over from a planned end of this term, which it finds after 60 ms.
fn taken_over_after(term: u64) -> u64 {
    let mut standby = start(member(2, 20), &[]);
    load(&mut standby, 0, &led(&[2]));
    assert!(standby.promise(0, &request(2)).is_some());
    let mut ended = led(&[]);
    (ended.version, ended.value.holder, ended.value.term) = (6, None, term);
    let (at_ms, value) = takes_over(&mut standby, 60, 9_000, &ended).unwrap();
    assert_eq!(value.term, TERM + 1);
    at_ms
}

#[test]
fn a_planned_end_frees_whoever_has_promised() {
    let at_ms = taken_over_after(TERM);
    assert!(at_ms < 200, "{at_ms} ms");
}

/// As of a register that was begun anew, or restored: the leader goes on by the promise.
#[test]
fn a_planned_end_of_before_frees_nobody() {
    for term in [0, TERM - 1] {
        let at_ms = taken_over_after(term);
        assert!(at_ms >= 2_000, "{at_ms} ms");
    }
    mutants::set(Some(ElectionMutant::EarlierEndFrees));
    assert!(taken_over_after(0) < 200);
    mutants::set(None);
}

#[test]
fn a_replica_that_is_silent_is_forgotten_unless_it_is_listed() {
    let stored = led(&[2]);
    let mut leader = start(member(2, 20), &[]);
    load(&mut leader, 0, &stored);
    let (at_ms, _) = takes_over(&mut leader, 10, 5_000, &stored).unwrap();
    leader.swapped(at_ms, SwapResult::Done(6));
    leader.introduced(at_ms, &peer(9));
    let record = leader.record();
    leader.kept(&record);
    let mut asked = |now_ms| {
        let round = leader.ask_promises(now_ms, Timestamp::ZERO).unwrap();
        let calls = round.calls.iter().map(|call| call.request.to);
        calls.collect::<Vec<u64>>()
    };
    assert_eq!(asked(at_ms), [1, 9]);
    assert_eq!(asked(at_ms + promises::FORGET_MS - 1), [1, 9]);
    assert_eq!(asked(at_ms + promises::FORGET_MS), [1]);
}

/// A register that an administrator has restored from an old copy, or has begun anew, is of an earlier term than the folders are.
#[test]
fn a_leader_acts_also_if_the_register_is_older_than_the_folders() {
    let mut before = start(member(2, 20), &[]);
    load(&mut before, 0, &led(&[2]));
    let mut record = before.promise(0, &request(2)).unwrap();
    (record.term, record.is_bound) = (TERM + 9, false);
    for stored in [Some(led(&[2])), None] {
        let mut leader = start(member(2, 21), &[20]);
        leader.restore(0, record);
        let swapped = swaps(&mut leader, 0, 10_000, stored.as_ref());
        let (at_ms, value) = swapped.expect("it takes over");
        assert_eq!(value.term, TERM + 10);
        leader.swapped(at_ms, SwapResult::Done(6));
        let round = leader.ask_promises(at_ms, Timestamp::ZERO).unwrap();
        leader.kept(&round.record);
        assert!(leader.leads(at_ms));
        // A standby that knows the later term promises, too.
        let mut standby = start(member(3, 30), &[]);
        standby.restore(
            0,
            PromiseRecord {
                replica: 3,
                ..record
            },
        );
        load(
            &mut standby,
            10_000,
            &StoredLeadership { version: 6, value },
        );
        for call in &round.calls {
            let request = PromiseRequest {
                to: 3,
                ..call.request
            };
            assert!(standby.promise(10_000, &request).is_some());
        }
    }
}

/// A folder's promise binds its next start, also if the register has lost its value.
#[test]
fn a_lost_register_ends_no_promise() {
    let mut promising = start(member(2, 20), &[]);
    load(&mut promising, 0, &led(&[2]));
    let record = promising.promise(0, &request(2)).unwrap();
    let mut restarted = start(member(2, 21), &[20]);
    restarted.restore(0, record);
    let swapped = swaps(&mut restarted, 0, 10_000, None);
    let (at_ms, _) = swapped.expect("it takes over when its promise has ended");
    assert!(at_ms >= Timing::default().takeover_ms, "{at_ms} ms");
}

/// Master 2 takes over from master 1, whose folder and whose own have copies. Returns whether it swaps the state before its
/// folder keeps the term, and whether it shows a state by copies before the register has its first one.
fn acts_too_early() -> (bool, bool) {
    let stored = led(&[2]);
    let mut leader = MasterReplica::new(member(2, 20), Vec::new(), Timing::default());
    assert_eq!(leader.poll(0), Some(Command::Load));
    leader.loaded(0, Ok(Some(stored.clone())));
    let mut now_ms = 0;
    let is_sent = |command| matches!(command, Some(Command::Swap { .. }));
    while !is_sent(leader.poll(now_ms)) {
        leader.loaded(now_ms, Ok(Some(stored.clone())));
        now_ms += 10;
        assert!(now_ms < 10_000, "it never takes over");
    }
    leader.swapped(now_ms, SwapResult::Done(6));
    let stores = leader.may_store_state(now_ms);
    let record = leader.record();
    leader.kept(&record);
    assert!(leader.may_store_state(now_ms) && leader.is_ahead());
    let round = leader.ask_promises(now_ms).unwrap();
    let [call] = &*round.calls else {
        panic!("{round:?}");
    };
    assert_eq!(call.request.to, 1);
    let of_term = |number| StateNumber {
        term: TERM + 1,
        number,
    };
    leader.copied_own(of_term(1));
    leader.copied(now_ms, call, 1);
    let shows = leader.show_copied(now_ms, of_term(1));
    assert_eq!(leader.ask_copies(now_ms).is_some(), shows);
    leader.stored(of_term(0));
    assert_eq!(leader.ask_copies(now_ms).map(|calls| calls.len()), Some(1));
    assert!(leader.is_ahead() == shows && leader.show_copied(now_ms, of_term(1)));
    assert!(leader.is_ahead() && !leader.show_copied(now_ms, of_term(2)));
    // In the other one's folder this is missing.
    leader.copied_own(of_term(2));
    assert!(!leader.show_copied(now_ms, of_term(2)));
    leader.stored(of_term(2));
    assert!(!leader.is_ahead());
    (stores, shows)
}

#[test]
fn a_leader_acts_when_its_folder_keeps_its_term_and_the_register_its_first_state() {
    assert_eq!(acts_too_early(), (false, false));
    mutants::set(Some(ElectionMutant::StateBeforeTermKept));
    assert_eq!(acts_too_early(), (true, false));
    mutants::set(Some(ElectionMutant::CopiesBeforeFirstState));
    assert_eq!(acts_too_early(), (false, true));
    mutants::set(None);
}

#[test]
fn a_takeover_goes_on_from_the_later_state() {
    let state = |term, number| Some(StateNumber { term, number });
    let cases = [
        (state(3, 5), None, StateSource::Register),
        (state(3, 5), state(3, 5), StateSource::Register),
        (state(3, 5), state(3, 6), StateSource::Copy),
        (state(4, 0), state(3, 6), StateSource::Register),
        (state(3, 6), state(4, 1), StateSource::Copy),
        // The register's was lost.
        (None, state(4, 1), StateSource::Register),
    ];
    for (register, copy, source) in cases {
        assert_eq!(StateNumber::take_over(register, copy), source);
    }
}

#[test]
fn replicas_are_named_where_they_were_seen_last() {
    let stored = led(&[2, 3]);
    let mut replica = start(member(2, 20), &[]);
    assert_eq!(replica.addresses(0), ["here:2"]);
    load(&mut replica, 0, &stored);
    assert_eq!(replica.addresses(0), ["here:2", "here:1", "here:3"]);
    // A standby has no reports of others.
    let again = Peer {
        address: "there:3".to_owned(),
        ..peer(3)
    };
    replica.introduced(0, &again);
    assert_eq!(replica.addresses(0), ["here:2", "here:1", "here:3"]);
    let (at_ms, _) = takes_over(&mut replica, 10, 5_000, &stored).unwrap();
    replica.swapped(at_ms, SwapResult::Done(6));
    assert_eq!(replica.addresses(at_ms), ["here:2", "here:1", "here:3"]);
    replica.introduced(at_ms, &again);
    assert_eq!(replica.addresses(at_ms), ["here:2", "here:1", "there:3"]);
    // One that is silent, and not in the register's value, is named no more.
    replica.introduced(at_ms, &peer(4));
    let named = ["here:2", "here:1", "there:3", "here:4"];
    assert_eq!(replica.addresses(at_ms), named);
    let later_ms = at_ms + Timing::default().takeover_ms + 1;
    assert_eq!(replica.addresses(later_ms), ["here:2", "here:1", "here:3"]);
}

#[test]
fn a_leave_that_comes_during_a_load_is_not_lost() {
    let stored = led(&[2]);
    let mut standby = start(member(2, 20), &[]);
    load(&mut standby, 0, &stored);
    let sent_ms = Timing::default().poll_ms;
    assert_eq!(standby.poll(sent_ms), Some(Command::Load));
    standby.leader_has_ended();
    // What the register had before.
    standby.loaded(sent_ms, Ok(Some(stored.clone())));
    let mut left = stored;
    left.version += 1;
    left.value.holder = None;
    load(&mut standby, sent_ms, &left);
    let took_over = standby.poll(sent_ms);
    assert!(
        matches!(took_over, Some(Command::Swap { .. })),
        "{took_over:?}"
    );
}

#[test]
fn a_load_without_an_answer_is_sent_again_before_anything_else() {
    let timing = Timing::default();
    let mut standby = start(member(2, 20), &[]);
    assert_eq!(standby.poll(0), Some(Command::Load));
    standby.loaded(0, Err(()));
    assert_eq!(standby.poll(timing.retry_ms), Some(Command::Load));
    // The register is empty, and nobody has it.
    standby.loaded(timing.retry_ms, Ok(None));
    standby.leader_has_ended();
    assert_eq!(standby.poll(timing.retry_ms), Some(Command::Load));
    standby.loaded(timing.retry_ms, Err(()));
    let again_ms = 2 * timing.retry_ms;
    assert_eq!(standby.poll(again_ms), Some(Command::Load));
}

/// A second, slow write of the folder would never be in time for a term of its own.
#[test]
fn a_leader_that_gave_up_needs_the_term_in_which_it_did() {
    let stored = led(&[2]);
    let mut slow = start(member(2, 20), &[]);
    load(&mut slow, 0, &stored);
    let (at_ms, value) = takes_over(&mut slow, 10, 5_000, &stored).unwrap();
    slow.swapped(at_ms, SwapResult::Done(6));
    let round = slow.ask_promises(at_ms, Timestamp::ZERO).unwrap();
    assert_eq!((round.record.term, round.calls), (TERM + 1, Vec::new()));
    let own = StoredLeadership { version: 6, value };
    let right_ms = Timing::default().right_ms;
    assert_eq!(
        takes_over(&mut slow, at_ms, right_ms + 5_000, &own),
        None,
        "its folder takes nothing"
    );
    assert_eq!(slow.role(), RoleKind::Standby);
    slow.kept(&round.record);
    let later_ms = at_ms + right_ms + 5_000;
    let (at_ms, value) = takes_over(&mut slow, later_ms, 1_000, &own).unwrap();
    slow.swapped(at_ms, SwapResult::Done(7));
    assert_eq!(value.term, TERM + 2);
    assert!(slow.leads(at_ms), "at once");
}

/// A label is set on the object that holds the value, each second.
#[test]
fn changes_around_the_value_put_no_takeover_off() {
    let mut stored = led(&[]);
    let mut standby = start(member(2, 20), &[]);
    load(&mut standby, 0, &stored);
    let mut swapped = None;
    for second in 0..4 {
        swapped = swapped.or_else(|| takes_over(&mut standby, second * 1_000, 1_000, &stored));
        stored.version += 1;
    }
    assert_eq!(
        swapped.map(|(at_ms, value)| (at_ms, value.term)),
        Some((3_000, TERM + 1))
    );
}
