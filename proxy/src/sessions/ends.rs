//! How sessions have ended, for calls that come late.
//!
//! Clients share the room: when there is no more, the client with the most ends loses one. So who begins and ends sessions without a
//! pause forgets how its own have ended, and not how those of others have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::SessionEnd;

/// An end, in the order of all ends.
type Number = u64;

/// The ends that are remembered.
#[derive(Debug)]
pub(super) struct Ends {
    most: usize,
    next: Number,
    by_token: HashMap<Arc<str>, Number>,
    /// The oldest first.
    ends: BTreeMap<Number, End>,
    /// Of each client: those first that are the least loss, and of these the oldest.
    of_clients: HashMap<IpAddr, BTreeSet<(bool, Number)>>,
    /// How many each client has, and which of them it loses first: the last client is the one that does.
    counts: BTreeSet<(usize, Reverse<Number>, IpAddr)>,
}

#[derive(Debug)]
struct End {
    at: Duration,
    token: Arc<str>,
    client: IpAddr,
    /// See [`is_answer`]: what it was when it came.
    is_answer: bool,
    end: SessionEnd,
}

impl Ends {
    pub(super) fn up_to(most: usize) -> Self {
        Self {
            most,
            next: 0,
            by_token: HashMap::new(),
            ends: BTreeMap::new(),
            of_clients: HashMap::new(),
            counts: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, token: &str) -> Option<&SessionEnd> {
        let number = self.by_token.get(token)?;
        self.ends.get(number).map(|end| &end.end)
    }

    pub(super) fn get_mut(&mut self, token: &str) -> Option<&mut SessionEnd> {
        let number = self.by_token.get(token)?;
        self.ends.get_mut(number).map(|end| &mut end.end)
    }

    /// The session of this client has ended so.
    pub(super) fn add(&mut self, at: Duration, client: IpAddr, token: String, end: SessionEnd) {
        let token: Arc<str> = token.into();
        let number = self.next;
        self.next += 1;
        self.by_token.insert(token.clone(), number);
        let is_answer = is_answer(&end);
        self.change(client, |of_client| {
            of_client.insert((is_answer, number));
        });
        let end = End {
            at,
            token,
            client,
            is_answer,
            end,
        };
        self.ends.insert(number, end);
        while self.ends.len() > self.most {
            match self.counts.last().copied() {
                Some((_, Reverse(number), _)) => self.forget(number),
                None => return,
            }
        }
    }

    /// Forgets what ended before this.
    pub(super) fn forget_before(&mut self, time: Duration) {
        while let Some((number, oldest)) = self.ends.first_key_value()
            && oldest.at <= time
        {
            self.forget(*number);
        }
    }

    fn forget(&mut self, number: Number) {
        if let Some(end) = self.ends.remove(&number) {
            self.by_token.remove(&end.token);
            self.change(end.client, |of_client| {
                of_client.remove(&(end.is_answer, number));
            });
        }
    }

    fn change(&mut self, client: IpAddr, change: impl FnOnce(&mut BTreeSet<(bool, Number)>)) {
        let counted = |of_client: &BTreeSet<(bool, Number)>| {
            let (_, first) = of_client.first()?;
            Some((of_client.len(), Reverse(*first), client))
        };
        let of_client = self.of_clients.entry(client).or_default();
        if let Some(before) = counted(of_client) {
            self.counts.remove(&before);
        }
        change(of_client);
        match counted(of_client) {
            Some(now) => drop(self.counts.insert(now)),
            None => drop(self.of_clients.remove(&client)),
        }
    }
}

/// Whether something of the session is committed, or may be: who asks late has no other way to know.
fn is_answer(end: &SessionEnd) -> bool {
    match end {
        SessionEnd::Committed(_)
        | SessionEnd::Finished
        | SessionEnd::HandOverUnknown
        | SessionEnd::Unknown { .. } => true,
        SessionEnd::RolledBack
        | SessionEnd::Aborted
        | SessionEnd::Expired(_)
        | SessionEnd::Stopped
        | SessionEnd::ParticipantLost
        | SessionEnd::ManagerGone => false,
    }
}

#[cfg(test)]
mod tests {
    use percolator_client::Timestamp;

    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn committed() -> SessionEnd {
        SessionEnd::Committed(Timestamp::from_u64(7))
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn known(ends: &Ends, tokens: &[&str]) -> Vec<bool> {
        tokens.iter().map(|it| ends.get(it).is_some()).collect()
    }

    #[test]
    fn a_client_that_ends_many_forgets_its_own() {
        let mut ends = Ends::up_to(4);
        ends.add(at(0), client(1), "mine".into(), committed());
        for number in 0..100 {
            let token = format!("theirs-{number}");
            ends.add(at(0), client(2), token, SessionEnd::RolledBack);
        }
        assert_eq!(ends.get("mine"), Some(&committed()));
        let last = ["theirs-96", "theirs-97", "theirs-98", "theirs-99"];
        assert_eq!(known(&ends, &last), [false, true, true, true]);
        assert_eq!((ends.by_token.len(), ends.counts.len()), (4, 2));
    }

    #[test]
    fn what_may_be_committed_is_remembered_longer() {
        let mut ends = Ends::up_to(2);
        ends.add(at(0), client(1), "a".into(), committed());
        ends.add(at(1), client(1), "b".into(), SessionEnd::RolledBack);
        ends.add(at(2), client(1), "c".into(), committed());
        assert_eq!(known(&ends, &["a", "b", "c"]), [true, false, true]);
        ends.add(at(3), client(1), "d".into(), committed());
        assert_eq!(known(&ends, &["a", "c", "d"]), [false, true, true]);
    }

    #[test]
    fn all_is_forgotten_in_time() {
        let mut ends = Ends::up_to(9);
        for (number, seconds) in (1..).zip([0, 1, 1, 5]) {
            let token = format!("{number}");
            ends.add(at(seconds), client(number % 2), token, committed());
        }
        ends.forget_before(at(1));
        assert_eq!(
            known(&ends, &["1", "2", "3", "4"]),
            [false, false, false, true]
        );
        ends.forget_before(at(5));
        assert!(ends.by_token.is_empty() && ends.ends.is_empty());
        assert!(ends.of_clients.is_empty() && ends.counts.is_empty());
    }
}
