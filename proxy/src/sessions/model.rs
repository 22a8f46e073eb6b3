//! A model of transactions that clients share, at one proxy and at two: calls in any order, lost requests and answers, leaps of
//! time, ends of every kind and proxies that are started again, against what really happened. Every mutant of the rules breaks it.

mod handing_over;

use std::collections::HashSet;

use super::mutants::{self, SessionMutant};
use super::*;

const STEPS: u32 = 120;
const SEEDS: u64 = 20_000;

/// A random number generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("below a usize")
    }

    fn percent(&mut self, of_a_hundred: usize) -> bool {
        self.below(100) < of_a_hundred
    }
}

/// What is true of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    Committing,
    Committed,
    Over,
}

/// What is true of a participant.
#[derive(Debug)]
struct Part {
    manager: usize,
    /// It is at the other proxy, where it has a session of its own; that at the manager's proxy stands for it.
    is_remote: bool,
    written: usize,
    /// What it had written when that was sent to the manager's proxy first.
    sealed: Option<usize>,
    is_given: bool,
    was_called_rolled_back: bool,
}

/// The sessions of the manager's proxy and of another one; each is carried out by its own name.
struct World {
    rng: Rng,
    now: Duration,
    /// So many ends each proxy remembers.
    ends_max: usize,
    here: Sessions<String>,
    there: Sessions<String>,
    managers: Vec<Stage>,
    parts: Vec<Part>,
    /// Participants between the two steps of joining: their managers, and their names.
    joining: Vec<(usize, String, bool)>,
    names: usize,
    /// Calls at the manager's proxy.
    under_way: Vec<(String, IpAddr)>,
    local: Vec<String>,
    remote: Vec<Option<String>>,
    /// Sessions that were said to have ended.
    over: HashSet<String>,
}

type Checked = Result<(), String>;

fn proxy(ends_max: usize) -> Sessions<String> {
    Sessions::new(Limits {
        idle_max: Duration::from_secs(30),
        session_max: Duration::from_secs(200),
        ends_max,
        ..Limits::default()
    })
}

fn from() -> IpAddr {
    IpAddr::from([10, 0, 0, 1])
}

fn manager(number: usize) -> String {
    format!("m{number}")
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// Says that nothing of the transaction is or will be committed.
fn is_rolled_back(end: &SessionEnd) -> bool {
    !matches!(
        end,
        SessionEnd::Committed(_)
            | SessionEnd::Finished
            | SessionEnd::HandOverUnknown
            | SessionEnd::Unknown { .. }
    )
}

impl World {
    fn new(seed: u64) -> Self {
        // In some, ends are forgotten at once.
        let ends_max = if seed.is_multiple_of(4) {
            2
        } else {
            usize::MAX
        };
        Self {
            rng: Rng(seed),
            now: Duration::ZERO,
            here: proxy(ends_max),
            there: proxy(ends_max),
            ends_max,
            managers: Vec::new(),
            parts: Vec::new(),
            joining: Vec::new(),
            names: 0,
            under_way: Vec::new(),
            local: Vec::new(),
            remote: Vec::new(),
            over: HashSet::new(),
        }
    }

    fn step(&mut self) -> Checked {
        match self.rng.below(100) {
            0..6 => self.begin(),
            6..14 => self.join(),
            14..24 => self.joined(),
            24..40 => self.write(),
            40..44 => {
                self.call_done();
                Ok(())
            }
            44..62 => self.finish(),
            62..67 => self.commit(),
            67..73 => self.end_commit(),
            73..76 => self.roll_back(),
            76..84 => self.ask(),
            84..90 => self.keep_alive(),
            90..94 => self.leap(),
            94..99 => self.expire(),
            _ => {
                self.restart();
                Ok(())
            }
        }
    }

    fn begin(&mut self) -> Checked {
        let token = manager(self.managers.len());
        self.here.begin(from()).map_err(|why| format!("{why:?}"))?;
        self.here.begun(self.now, from(), token.clone(), token);
        self.managers.push(Stage::Open);
        Ok(())
    }

    fn some_manager(&mut self) -> Option<usize> {
        let count = self.managers.len();
        // The last ones are those that are of interest.
        (count > 0).then(|| count - 1 - self.rng.below(count.min(3)))
    }

    fn some_part(&mut self) -> Option<usize> {
        let count = self.parts.len();
        (count > 0).then(|| count - 1 - self.rng.below(count.min(5)))
    }

    fn join(&mut self) -> Checked {
        let Some(of) = self.some_manager() else {
            return Ok(());
        };
        // So that some are committed.
        let parts = self.parts.iter().filter(|part| part.manager == of);
        if parts.count() < 3 && self.here.join(self.now, from(), &manager(of)).is_ok() {
            let name = format!("p{}", self.names);
            self.names += 1;
            let is_remote = self.rng.percent(50);
            self.joining.push((of, name, is_remote));
        }
        Ok(())
    }

    /// The second step of one that joins.
    fn joined(&mut self) -> Checked {
        if self.joining.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.joining.len());
        let (of, name, is_remote) = self.joining.swap_remove(at);
        let joined = self
            .here
            .joined(self.now, from(), &manager(of), name.clone(), name.clone());
        if joined.is_err() {
            return Ok(());
        }
        let stage = self.managers[of];
        check(stage == Stage::Open, || {
            format!("{name} has joined {of}, which is {stage:?}")
        })?;
        let remote = is_remote.then(|| name.replace('p', "r"));
        if let Some(remote) = &remote {
            let room = self.there.begin(from());
            room.map_err(|why| format!("{why:?}"))?;
            self.there
                .joined_elsewhere(self.now, from(), remote.clone(), remote.clone());
        }
        self.local.push(name);
        self.remote.push(remote);
        self.parts.push(Part {
            manager: of,
            is_remote,
            written: 0,
            sealed: None,
            is_given: false,
            was_called_rolled_back: false,
        });
        Ok(())
    }

    /// A call that a client makes, of a manager or of a participant.
    fn write(&mut self) -> Checked {
        if self.rng.percent(30) {
            let Some(of) = self.some_manager() else {
                return Ok(());
            };
            return self.call_here(&manager(of));
        }
        let Some(at) = self.some_part() else {
            return Ok(());
        };
        let Some(remote) = self.remote[at].clone() else {
            let name = self.local[at].clone();
            let before = self.parts[at].written;
            self.call_here(&name)?;
            if self.here.why_gone(&name).is_none() {
                self.parts[at].written = before + 10;
                self.here.written(&name, before + 10);
            }
            return Ok(());
        };
        match self.there.call(self.now, &remote) {
            Ok((_, client)) => {
                let part = &mut self.parts[at];
                check(part.sealed.is_none(), || {
                    format!("{remote} writes, and what it wrote was sent")
                })?;
                check(!self.over.contains(&remote), || {
                    format!("{remote} has come back")
                })?;
                part.written += 10;
                self.there.written(&remote, part.written);
                self.there.call_done(self.now, &remote, client);
                Ok(())
            }
            Err(refusal) => self.refused(&remote, &refusal),
        }
    }

    fn call_here(&mut self, token: &str) -> Checked {
        match self.here.call(self.now, token) {
            Ok((_, client)) => {
                self.under_way.push((token.to_owned(), client));
                if self.rng.percent(50) {
                    self.call_done();
                }
                check(!self.over.contains(token), || {
                    format!("{token} has come back")
                })?;
                let lost = self.parts.iter().enumerate().find(|(at, part)| {
                    let is_gone = self.here.why_gone(&self.local[*at]).is_some();
                    manager(part.manager) == token && is_gone && !part.is_given
                });
                check(lost.is_none(), || {
                    format!("{token} goes on without {lost:?}")
                })?;
                let of = self.local.iter().position(|local| local == token);
                let stage = of.map(|at| self.managers[self.parts[at].manager]);
                let is_there = !matches!(stage, Some(Stage::Committed | Stage::Over));
                check(is_there, || format!("{token} goes on without its manager"))
            }
            Err(refusal) => self.refused(token, &refusal),
        }
    }

    /// The call that has been under way for the shortest time ends.
    fn call_done(&mut self) {
        if let Some((token, client)) = self.under_way.pop() {
            self.here.call_done(self.now, &token, client);
        }
    }

    /// Its client is answered so.
    fn refused(&mut self, token: &str, refusal: &Refusal) -> Checked {
        let Refusal::Ended(end) = refusal else {
            return Ok(());
        };
        self.over.insert(token.to_owned());
        self.answered(token, end)
    }

    /// The client of this session is answered that it has ended so.
    fn answered(&mut self, token: &str, end: &SessionEnd) -> Checked {
        if let Some(number) = token.strip_prefix('m') {
            let stage = self.managers[number.parse::<usize>().expect("a number")];
            let is_committed = stage == Stage::Committed;
            if matches!(end, SessionEnd::Committed(_)) {
                return check(is_committed, || {
                    format!("{token} is {stage:?}, not {end:?}")
                });
            }
            return check(!is_committed || !is_rolled_back(end), || {
                format!("{token} is committed, not {end:?}")
            });
        }
        let Some(at) = self.client_of(token) else {
            return Ok(());
        };
        let part = &mut self.parts[at];
        part.was_called_rolled_back |= is_rolled_back(end);
        check(*end != SessionEnd::Finished || part.is_given, || {
            format!("{token} has not finished")
        })
    }

    /// The participant whose client has this session: not one that stands for a session of the other proxy.
    fn client_of(&self, token: &str) -> Option<usize> {
        let here = || self.local.iter().position(|local| local == token);
        let there = |remote: &Option<String>| remote.as_deref() == Some(token);
        let at = self.remote.iter().position(there).or_else(here)?;
        let has_it = self.parts[at].is_remote == token.starts_with('r');
        has_it.then_some(at)
    }

    fn commit(&mut self) -> Checked {
        let Some(of) = self.some_manager() else {
            return Ok(());
        };
        let (token, stage) = (manager(of), self.managers[of]);
        let mut parts = self.parts.iter().filter(|part| part.manager == of);
        if !parts.all(|part| part.is_given) && self.rng.percent(80) {
            return Ok(());
        }
        match self.here.commit(self.now, &token) {
            Ok(CommitStep::Done(_)) => check(stage == Stage::Committed, || {
                format!("{token} is {stage:?}, not committed")
            }),
            Ok(CommitStep::Begin(_)) => {
                check(stage == Stage::Open, || format!("{token} was {stage:?}"))?;
                check(!self.over.contains(&token), || {
                    format!("{token} has come back")
                })?;
                let mut parts = self.parts.iter().filter(|part| part.manager == of);
                let missing = parts.find(|part| !part.is_given || part.was_called_rolled_back);
                check(missing.is_none(), || {
                    format!("{token} commits without {missing:?}")
                })?;
                self.managers[of] = Stage::Committing;
                Ok(())
            }
            Err(refusal) => {
                let mut parts = self.parts.iter().filter(|part| part.manager == of);
                let all = parts.all(|part| part.is_given);
                let is_lost = refusal == Refusal::Ended(SessionEnd::ParticipantLost);
                check(!(is_lost && all), || format!("{token} has lost nobody"))?;
                self.refused(&token, &refusal)
            }
        }
    }

    fn end_commit(&mut self) -> Checked {
        let mut managers = self.managers.iter();
        if let Some(of) = managers.position(|stage| *stage == Stage::Committing) {
            let (token, now) = (manager(of), self.now);
            let (stage, end) = match self.rng.below(10) {
                0..6 => {
                    let commit_ts = Timestamp::from_u64(7);
                    (Stage::Committed, Some(SessionEnd::Committed(commit_ts)))
                }
                6..8 => (Stage::Over, Some(SessionEnd::Aborted)),
                _ => (Stage::Open, None),
            };
            self.managers[of] = stage;
            match end {
                Some(end) => drop(self.here.finish(now, &token, end)),
                None => self.here.commit_not_begun(now, &token),
            }
        }
        Ok(())
    }

    fn roll_back(&mut self) -> Checked {
        if self.rng.percent(30) {
            let Some(of) = self.some_manager() else {
                return Ok(());
            };
            let (token, stage) = (manager(of), self.managers[of]);
            if let Ok(rolled_back) = self.here.rollback(self.now, &token) {
                check(
                    !matches!(stage, Stage::Committing | Stage::Committed),
                    || format!("{token} is {stage:?}, and is rolled back"),
                )?;
                if rolled_back.is_some() {
                    self.managers[of] = Stage::Over;
                }
            }
            return Ok(());
        }
        let Some(at) = self.some_part() else {
            return Ok(());
        };
        let name = self.local[at].clone();
        if let Some(remote) = self.remote[at].clone() {
            let Ok(_) = self.there.rollback(self.now, &remote) else {
                return Ok(());
            };
            self.parts[at].was_called_rolled_back = true;
            // The message to the manager's proxy may be lost.
            if self.rng.percent(50) {
                return Ok(());
            }
            drop(self.here.rollback(self.now, &name));
        } else if self.here.rollback(self.now, &name).is_ok() {
            self.parts[at].was_called_rolled_back = true;
        }
        Ok(())
    }

    /// A client asks for the outcome.
    fn ask(&mut self) -> Checked {
        let (token, outcome) = if self.rng.percent(30) {
            let Some(of) = self.some_manager() else {
                return Ok(());
            };
            (manager(of), self.here.outcome(&manager(of)))
        } else {
            let Some(at) = self.some_part() else {
                return Ok(());
            };
            match self.remote[at].clone() {
                Some(remote) => (remote.clone(), self.there.outcome(&remote)),
                None => (self.local[at].clone(), self.here.outcome(&self.local[at])),
            }
        };
        match outcome {
            Ok(KnownEnd::Ended(end)) => self.answered(&token, &end),
            Ok(KnownEnd::Open) | Err(_) => Ok(()),
        }
    }

    fn leap(&mut self) -> Checked {
        let is_long = self.rng.percent(20);
        let seconds = if is_long { 25..40 } else { 0..5 };
        let seconds = seconds.start + self.rng.below(seconds.len());
        self.now += Duration::from_secs(seconds as u64);
        // Before sessions are expired.
        for _ in 0..if is_long { 8 } else { 0 } {
            self.write()?;
        }
        Ok(())
    }

    fn expire(&mut self) -> Checked {
        for (token, _) in self.here.expire(self.now) {
            if let Some(number) = token.strip_prefix('m') {
                let stage = &mut self.managers[number.parse::<usize>().expect("a number")];
                check(*stage != Stage::Committing, || {
                    format!("{token} expires, and commits")
                })?;
                *stage = Stage::Over;
            }
        }
        self.there.expire(self.now);
        Ok(())
    }

    /// A proxy is killed, and started again: it knows no session any more.
    fn restart(&mut self) {
        if self.rng.percent(50) {
            self.there = proxy(self.ends_max);
            return;
        }
        self.here = proxy(self.ends_max);
        self.joining.clear();
        self.under_way.clear();
        for stage in &mut self.managers {
            *stage = match *stage {
                Stage::Open => Stage::Over,
                Stage::Committing if self.rng.percent(50) => Stage::Committed,
                Stage::Committing => Stage::Over,
                over => over,
            };
        }
    }

    /// When all is over, nothing is held, and what clients were answered is true.
    fn end(&mut self) -> Checked {
        while !self.joining.is_empty() {
            self.joined()?;
        }
        while !self.under_way.is_empty() {
            self.call_done();
        }
        while self.managers.contains(&Stage::Committing) {
            self.end_commit()?;
        }
        // A session that ends ends others one round later.
        for _ in 0..3 {
            self.now += Duration::from_secs(300);
            self.expire()?;
        }
        for sessions in [&self.here, &self.there] {
            check(sessions.is_empty(), || {
                format!("places are left: {sessions:?}")
            })?;
            check(sessions.bytes() == 0, || {
                format!("{} bytes are left", sessions.bytes())
            })?;
        }
        for part in &self.parts {
            let is_committed = part.is_given && self.managers[part.manager] == Stage::Committed;
            check(!(is_committed && part.was_called_rolled_back), || {
                format!("it was said to be rolled back, and is committed: {part:?}")
            })?;
        }
        Ok(())
    }
}

fn run(seed: u64) -> Result<World, String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.end()?;
    Ok(world)
}

#[test]
fn what_clients_are_answered_of_shared_transactions_is_true() {
    let (mut committed, mut given) = (0, 0);
    for seed in 0..SEEDS {
        let world = run(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for part in world.parts.iter().filter(|part| part.is_given) {
            given += 1;
            committed += u32::from(world.managers[part.manager] == Stage::Committed);
        }
    }
    // It is about something.
    assert!(
        committed * 10 > given,
        "{committed} of {given} were committed"
    );
}

#[test]
fn every_mutant_is_killed() {
    let survivors = SessionMutant::ALL.into_iter().filter(|mutant| {
        mutants::set(Some(*mutant));
        let is_killed = (0..SEEDS).any(|seed| run(seed).is_err());
        mutants::set(None);
        !is_killed
    });
    assert_eq!(survivors.collect::<Vec<_>>(), []);
}
