//! The addresses of a cluster's masters, and the choice of the one to ask.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use percolator_protocol::election::NamedLeader;
use tonic::metadata::MetadataMap;

/// In the metadata of a master's answers: the addresses of all masters that it knows, with commas between. One that is alone names none.
pub const MASTERS: &str = "percolator-masters";
/// So many are taken up at the most.
const LEARNED_MAX: usize = 8;

/// A standby takes over within this after a leader's last sign of life.
const TAKEOVER: Duration = Duration::from_secs(3);
/// A master that gives no answer for so long may stand still. A process that is dead refuses at once.
const WAITED: Duration = Duration::from_millis(500);

/// The addresses of a cluster's masters, as they are written: `HOST:PORT`, or several of these with commas between. One of
/// them is the one to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddresses {
    all: Vec<String>,
    /// The addresses at which masters reach each other, as one of them has named them. A configured address may stand for several masters,
    /// or resolve anew each time. So only these addresses decide which master isn't asked again.
    learned: Vec<String>,
    /// The one of these that has answered last.
    answered_by: Option<String>,
    /// The one to ask; also one that only a standby has named.
    current: String,
    /// Those to ask after it, if it doesn't lead.
    others: VecDeque<String>,
    /// The master that gave no answer last. A standby may still take it for the leader.
    unanswered: Option<UnansweredMaster>,
    /// A standby has answered. So there are several masters, also if one address stands for all of them, as that of a service
    /// of Kubernetes does.
    has_standbys: bool,
}

/// A master that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnansweredMaster {
    address: String,
    /// Until when it was waited for; none if it refused at once.
    waited: Option<Instant>,
}

/// A text is no list of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a master: it is written HOST:PORT, as in 127.0.0.1:7400, master.example:7400 or [::1]:7400; \
     several are written with commas between"
)]
pub struct NoMasterAddress {
    /// The text.
    pub text: String,
}

impl FromStr for MasterAddresses {
    type Err = NoMasterAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all: Vec<String> = text.split(',').map(|it| it.trim().to_owned()).collect();
        let wrong = all.iter().find(|address| !is_address(address));
        if let Some(wrong) = wrong {
            let text = wrong.clone();
            return Err(NoMasterAddress { text });
        }
        let current = all.first().cloned().unwrap_or_default();
        Ok(Self {
            all,
            learned: Vec::new(),
            answered_by: None,
            current,
            others: VecDeque::new(),
            unanswered: None,
            has_standbys: false,
        })
    }
}

impl fmt::Display for MasterAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.all.join(","))
    }
}

impl MasterAddresses {
    /// The one to ask.
    pub fn current(&self) -> &str {
        &self.current
    }

    /// Whether there is another one to ask.
    pub fn are_several(&self) -> bool {
        self.count() > 1
    }

    /// Whether another address is known than this one, so that it needn't be waited for.
    pub fn may_pass(&self, address: &str) -> bool {
        self.known().any(|known| known != address)
    }

    /// Whether a standby has answered, or a master has named others.
    pub fn have_standbys(&self) -> bool {
        self.has_standbys || self.learned.len() > 1
    }

    /// How many there are to ask: all addresses that are known, and at least two if a standby has answered.
    pub fn count(&self) -> usize {
        let given = self.all.iter().filter(|it| !self.learned.contains(it));
        let known = self.learned.len() + given.count();
        known.max(1 + usize::from(self.has_standbys))
    }

    /// The leader has answered, with this metadata.
    pub fn answered(&mut self, metadata: &MetadataMap) {
        self.learn(metadata);
        self.answered_by = self.learned.first().cloned();
        self.others.clear();
        self.unanswered = None;
    }

    /// A master has named all that it knows, itself first, in the metadata of an answer.
    pub fn learn(&mut self, metadata: &MetadataMap) {
        let named = metadata.get(MASTERS).and_then(|named| named.to_str().ok());
        if let Some(named) = named {
            let addresses = named.split(',').filter(|address| is_address(address));
            self.learned = addresses.take(LEARNED_MAX).map(str::to_owned).collect();
        }
    }

    fn known(&self) -> impl Iterator<Item = &String> {
        self.learned.iter().chain(&self.all)
    }

    /// Those to ask after the current one, which is the last: first those whose addresses name one master each, and of these the one
    /// that has answered last behind the others.
    fn rest(&self) -> VecDeque<String> {
        let at = self.all.iter().position(|it| *it == self.current);
        let (before, behind) = self.all.split_at(at.map_or(0, |at| at + 1));
        let by = self.answered_by.as_ref();
        let others = self.learned.iter().filter(|it| Some(*it) != by);
        let mut rest = VecDeque::new();
        for address in others.chain(by).chain(behind).chain(before) {
            if *address != self.current && !rest.contains(address) {
                rest.push_back(address.clone());
            }
        }
        // One that only a standby has named is named again.
        if rest.is_empty() || self.known().any(|it| *it == self.current) {
            rest.push_back(self.current.clone());
        }
        rest
    }

    /// The one that was asked isn't the leader, and names it if it knows it. Whether that one was taken up: then it may be
    /// asked at once.
    ///
    /// A leader that has just given no answer isn't taken up: it may be dead, and the standby about to take over. One that
    /// was waited for in vain may stand still: the standby is asked again, until another one leads, or it has seen that one
    /// renew its right since.
    pub fn not_leading(&mut self, asked: &str, leader: Option<&NamedLeader>, now: Instant) -> bool {
        self.has_standbys = true;
        if asked != self.current {
            // Somebody else who asks has gone on already.
            return true;
        }
        if let Some(leader) = leader {
            let unanswered = self.unanswered.as_ref();
            let unanswered = unanswered.filter(|unanswered| unanswered.address == leader.address);
            let waited = unanswered.and_then(|unanswered| unanswered.waited);
            let since = waited.map(|until| now.saturating_duration_since(until));
            let is_alive = since.is_some_and(|it| u128::from(leader.silent_ms) < it.as_millis());
            if (unanswered.is_none() || is_alive) && leader.address != asked {
                self.current.clone_from(&leader.address);
                return true;
            }
            if since.is_some_and(|since| since < TAKEOVER) {
                return false;
            }
        } else if self.has_waited(now) && self.is_next_silent() {
            // One that names nobody is about to lead.
            return false;
        }
        self.unanswered = None;
        self.advance();
        false
    }

    /// Whether one was waited for in vain so short a time ago that no standby can have taken over.
    fn has_waited(&self, now: Instant) -> bool {
        let waited = self
            .unanswered
            .as_ref()
            .and_then(|unanswered| unanswered.waited);
        waited.is_some_and(|until| now.saturating_duration_since(until) < TAKEOVER)
    }

    /// Whether the next one to ask is the silent one, or an address that may lead to it.
    fn is_next_silent(&self) -> bool {
        let next = self.others.front().cloned();
        let next = next.or_else(|| self.rest().pop_front()).unwrap_or_default();
        let is_silent = |unanswered: &UnansweredMaster| unanswered.address == next;
        let may_be_any = !self.learned.is_empty() && !self.learned.contains(&next);
        may_be_any || self.unanswered.as_ref().is_some_and(is_silent)
    }

    /// The one that was asked then gave no answer until now.
    pub fn no_answer(&mut self, asked: &str, since: Instant, now: Instant) {
        if asked != self.current {
            return;
        }
        let has_waited = now.saturating_duration_since(since) >= WAITED;
        // Behind an address that stands for several it is most likely the one that has answered there.
        let stands_for = self.answered_by.as_deref().filter(|_| {
            !self.learned.iter().any(|it| it == asked) && self.all.iter().any(|it| it == asked)
        });
        self.unanswered = Some(UnansweredMaster {
            address: stands_for.unwrap_or(asked).to_owned(),
            // A connection that is refused costs nothing: it is tried again.
            waited: has_waited.then_some(now),
        });
        self.advance();
    }

    /// Another cluster's master is at the one that was asked. Whether it is forgotten: at an address that was given the client's
    /// cluster was replaced; one that only a master has named was a master's that is elsewhere by now.
    pub fn forget(&mut self, asked: &str) -> bool {
        if self.all.iter().any(|it| it == asked) {
            return false;
        }
        self.learned.retain(|it| it != asked);
        self.others.retain(|it| it != asked);
        self.answered_by.take_if(|it| it == asked);
        if self.current == asked {
            self.advance();
        }
        true
    }

    fn advance(&mut self) {
        if self.others.is_empty() {
            self.others = self.rest();
        }
        if let Some(next) = self.others.pop_front() {
            self.current = next;
        }
    }
}

/// Whether the text is HOST:PORT, with an IPv6 address in brackets.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .map_or(!host.contains([':', '/', '@', '[', ']']), |ipv6| {
                ipv6.parse::<std::net::Ipv6Addr>().is_ok()
            });
        !host.is_empty() && bare && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that is named by a standby that has never seen it renew its right.
    fn named(address: &str) -> NamedLeader {
        NamedLeader {
            address: address.to_owned(),
            silent_ms: u64::MAX,
        }
    }

    #[test]
    fn addresses_are_read_from_a_list() {
        let masters: MasterAddresses = "a:1, [::1]:2,c.example:3".parse().unwrap();
        assert_eq!(masters.to_string(), "a:1,[::1]:2,c.example:3");
        assert!(masters.are_several() && masters.current() == "a:1");
        for wrong in ["", "a", "a:1,", "a:1,b", "a:0", "http://a:1", "::1:7"] {
            let error = wrong.parse::<MasterAddresses>().unwrap_err();
            assert!(error.to_string().contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_standbys_leader_is_asked_and_else_the_next_one() {
        let now = Instant::now();
        let mut masters: MasterAddresses = "a:1,b:1".parse().unwrap();
        assert!(masters.not_leading("a:1", Some(&named("z:1")), now));
        assert_eq!(masters.current(), "z:1");
        masters.no_answer("z:1", now, now);
        assert_eq!(masters.current(), "a:1");
        // It doesn't know yet that its leader is dead.
        assert!(!masters.not_leading("a:1", Some(&named("z:1")), now));
        assert_eq!(masters.current(), "b:1");
        // It may be back.
        assert!(masters.not_leading("b:1", Some(&named("z:1")), now));
        assert_eq!(masters.current(), "z:1");
    }

    #[test]
    fn one_address_may_stand_for_several_masters() {
        let now = Instant::now();
        let mut masters: MasterAddresses = "service:1".parse().unwrap();
        assert_eq!((masters.are_several(), masters.count()), (false, 1));
        assert!(masters.not_leading("service:1", Some(&named("a:1")), now));
        assert_eq!((masters.current(), masters.count()), ("a:1", 2));
        // When the leader has died, another connection to the service may reach its successor.
        masters.no_answer("a:1", now, now);
        assert_eq!(masters.current(), "service:1");
        assert!(!masters.not_leading("service:1", Some(&named("a:1")), now));
        assert_eq!(masters.current(), "service:1");
        assert!(masters.are_several());
    }

    fn names(masters: &'static str) -> MetadataMap {
        let mut answer = MetadataMap::new();
        answer.insert(MASTERS, masters.parse().unwrap());
        answer
    }

    #[test]
    fn masters_that_were_named_are_asked_before_addresses_that_stand_for_any() {
        let began = Instant::now();
        let now = began + Duration::from_secs(3);
        let mut masters: MasterAddresses = "service:1,pod-0:1,pod-1:1".parse().unwrap();
        let silent = |masters: &mut MasterAddresses, next: &str| {
            let current = masters.current().to_owned();
            masters.no_answer(&current, began, now);
            assert_eq!(masters.current(), next);
        };
        // Leads, and has one standby.
        masters.answered(&names("a:1,b:1"));
        assert_eq!((masters.current(), masters.count()), ("service:1", 5));
        assert!(masters.have_standbys() && masters.may_pass("service:1"));
        silent(&mut masters, "b:1");
        assert!(!masters.not_leading("b:1", Some(&named("a:1")), now));
        assert_eq!(masters.current(), "b:1");
        // Just before it leads it names nobody. The service would lead to the silent one again.
        assert!(!masters.not_leading("b:1", None, now + TAKEOVER / 2));
        assert_eq!(masters.current(), "b:1");
        masters.answered(&names("b:1,a:1"));
        // Both were replaced.
        silent(&mut masters, "a:1");
        silent(&mut masters, "service:1");
        silent(&mut masters, "pod-0:1");
        silent(&mut masters, "pod-1:1");
        silent(&mut masters, "b:1");
        // An answer that names nobody changes nothing, and neither does what is no address.
        masters.learn(&MetadataMap::new());
        masters.learn(&names("c:1,nowhere"));
        silent(&mut masters, "c:1");
    }

    #[test]
    fn what_was_named_and_is_another_clusters_by_now_is_forgotten() {
        let now = Instant::now();
        let mut masters: MasterAddresses = "service:1".parse().unwrap();
        masters.answered(&names("a:1,b:1"));
        masters.no_answer("service:1", now, now);
        assert_eq!(masters.current(), "b:1");
        assert!(masters.forget("b:1"));
        assert_eq!(masters.current(), "a:1");
        assert!(masters.forget("a:1"));
        assert_eq!((masters.current(), masters.count()), ("service:1", 1));
        // A standby may name one that has gone.
        assert!(masters.not_leading("service:1", Some(&named("b:1")), now));
        assert!(masters.forget("b:1"));
        assert_eq!(masters.current(), "service:1");
        assert!(!masters.forget("service:1"), "it was given");
        assert_eq!(masters.current(), "service:1");
    }

    #[test]
    fn a_leader_that_may_stand_still_is_left_alone_until_another_one_leads() {
        let began = Instant::now();
        let now = began + Duration::from_secs(2);
        let mut masters: MasterAddresses = "a:1,b:1".parse().unwrap();
        masters.no_answer("a:1", began, now);
        assert_eq!(masters.current(), "b:1");
        assert!(!masters.not_leading("b:1", Some(&named("a:1")), now + TAKEOVER / 2));
        assert_eq!(masters.current(), "b:1");
        assert!(masters.not_leading("b:1", Some(&named("c:1")), now + TAKEOVER / 2));
        assert_eq!(masters.current(), "c:1");
        masters.no_answer("c:1", now, now);
        masters.no_answer("a:1", began, now);
        assert!(!masters.not_leading("b:1", Some(&named("a:1")), now + TAKEOVER));
        assert_eq!(masters.current(), "a:1");
    }

    #[test]
    fn a_standby_that_is_about_to_lead_is_asked_again_and_not_the_silent_one() {
        let began = Instant::now();
        let now = began + Duration::from_secs(2);
        let mut masters: MasterAddresses = "a:1,b:1".parse().unwrap();
        masters.no_answer("a:1", began, now);
        // It takes over just now, and names nobody.
        assert!(!masters.not_leading("b:1", None, now + TAKEOVER / 2));
        assert_eq!(masters.current(), "b:1");
        // It doesn't lead after all.
        assert!(!masters.not_leading("b:1", None, now + TAKEOVER));
        assert_eq!(masters.current(), "a:1");
        // One that refuses at once costs nothing.
        masters.no_answer("a:1", now, now);
        assert!(!masters.not_leading("b:1", None, now));
        assert_eq!(masters.current(), "a:1");
    }

    #[test]
    fn a_leader_that_has_renewed_its_right_since_is_asked_again() {
        let began = Instant::now();
        let now = began + Duration::from_secs(1);
        let mut masters: MasterAddresses = "a:1,b:1".parse().unwrap();
        masters.no_answer("a:1", began, now);
        let later = now + Duration::from_millis(700);
        let renewed = |silent_ms| NamedLeader {
            silent_ms,
            ..named("a:1")
        };
        // Before it was given up: it may stand still since then.
        assert!(!masters.not_leading("b:1", Some(&renewed(700)), later));
        assert_eq!(masters.current(), "b:1");
        assert!(masters.not_leading("b:1", Some(&renewed(699)), later));
        assert_eq!(masters.current(), "a:1");
    }

    #[test]
    fn the_answer_to_an_earlier_request_changes_nothing() {
        let now = Instant::now();
        let mut masters: MasterAddresses = "a:1,b:1,c:1".parse().unwrap();
        masters.no_answer("a:1", now, now);
        masters.no_answer("a:1", now, now);
        assert_eq!(masters.current(), "b:1");
        assert!(!masters.not_leading("b:1", None, now));
        assert_eq!(masters.current(), "c:1");
        assert!(!masters.not_leading("c:1", Some(&named("c:1")), now));
        assert_eq!(masters.current(), "a:1");
    }
}
