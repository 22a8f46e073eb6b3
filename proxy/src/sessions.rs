//! The sessions of a proxy, and every decision about them: who may begin, what is too much, what has expired, what a
//! call on a session that has ended is answered.
//!
//! Nothing here waits, or knows a clock or a socket: times are handed in, as durations since the proxy's start.

mod ends;
mod mutants;
mod participants;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use percolator_client::{Cell, Timestamp};

pub use crate::pool::Full;
use crate::pool::Pool;
use ends::Ends;
use mutants::SessionMutant;
pub use participants::FinishStep;
use participants::Role;

/// What a proxy lets its clients have: of what all share, no client more than is left for the others ([`Full`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open sessions.
    pub sessions_max: usize,
    /// How long a session may be without a call.
    pub idle_max: Duration,
    /// How long a session may be open.
    pub session_max: Duration,
    /// What a session may have written, in bytes as the client library counts them.
    pub session_bytes_max: usize,
    /// What all sessions together may have written.
    pub bytes_max: usize,
    /// Calls under way, but for scans.
    pub calls_max: usize,
    /// Scans under way.
    pub scans_max: usize,
    /// Calls and scans under way of one session.
    pub session_calls_max: usize,
    /// For how long it is remembered how a session ended.
    pub remember_for: Duration,
    /// Of so many sessions. Beyond, the client that has the most of them has some forgotten.
    pub ends_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 20_000,
            idle_max: Duration::from_secs(30),
            session_max: Duration::from_secs(300),
            session_bytes_max: 16 << 20,
            bytes_max: 256 << 20,
            calls_max: 1024,
            scans_max: 256,
            session_calls_max: 32,
            remember_for: Duration::from_secs(300),
            ends_max: 4 * 20_000,
        }
    }
}

/// Which time of a session was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// [`Limits::idle_max`].
    Idle,
    /// [`Limits::session_max`].
    Total,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// It is committed.
    Committed(Timestamp),
    /// Its client has rolled it back.
    RolledBack,
    /// It was rolled back, because another transaction was first or for another reason of the cluster's.
    Aborted,
    /// Its time was over, and it was rolled back.
    Expired(Expiry),
    /// The proxy stopped, and rolled it back.
    Stopped,
    /// A participant has handed over what it has written.
    Finished,
    /// A participant was handing over what it has written to another proxy, and got no response.
    HandOverUnknown,
    /// A participant has ended without finishing, or had not finished when the transaction was to be committed.
    ParticipantLost,
    /// Of a participant: the session that it joined has ended, or is at a proxy that is gone.
    ManagerGone,
    /// The answer to its commit was lost: its primary knows.
    Unknown {
        /// The transaction.
        start_ts: Timestamp,
        /// Its primary.
        primary: Cell,
    },
}

/// The reason why a call isn't carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The proxy stops.
    Stopping,
    /// Too many sessions are open.
    Sessions(Full),
    /// The session would have written more than this.
    SessionBytes(usize),
    /// All sessions together would have written too much.
    Bytes(Full),
    /// Too many calls are under way.
    Calls(Full),
    /// Too many scans are under way.
    Scans(Full),
    /// So many calls of the session are under way.
    SessionCalls(usize),
    /// The session has ended.
    Ended(SessionEnd),
    /// Its commit is under way.
    Committing,
    /// There is no such session, or it ended long ago.
    Unknown,
    /// A participant finishes, and is neither committed nor joined.
    IsParticipant,
    /// A session that has joined no other one is committed, and doesn't finish.
    NoParticipant,
    /// The transaction is committed, or being committed: nobody joins it any more.
    TooLate,
}

/// What a session's commit has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum CommitStep<T> {
    /// Commit it, and [`Sessions::finish`] the session.
    Begin(T),
    /// It was committed before.
    Done(Timestamp),
}

/// What is known of how a session ends.
#[derive(Debug, PartialEq, Eq)]
pub enum KnownEnd {
    /// It is open, or its commit is under way.
    Open,
    /// It has ended.
    Ended(SessionEnd),
}

#[derive(Debug)]
struct Session<T> {
    txn: T,
    client: IpAddr,
    began: Duration,
    used: Duration,
    /// Calls and scans under way.
    calls: usize,
    scans: usize,
    bytes: usize,
    committing: bool,
    role: Role,
}

impl<T> Session<T> {
    fn new(now: Duration, client: IpAddr, txn: T, role: Role) -> Self {
        Self {
            txn,
            client,
            began: now,
            used: now,
            calls: 0,
            scans: 0,
            bytes: 0,
            committing: false,
            role,
        }
    }

    fn expired(&self, limits: &Limits, now: Duration) -> Option<Expiry> {
        // A commit has limits of its own. A scan whose reader takes nothing doesn't keep a session.
        if self.committing {
            None
        } else if now.saturating_sub(self.began) >= limits.session_max {
            Some(Expiry::Total)
        } else if self.calls == self.scans && now.saturating_sub(self.used) >= limits.idle_max {
            Some(Expiry::Idle)
        } else {
            None
        }
    }
}

/// The sessions of a proxy; `T` is what carries out their calls.
#[derive(Debug)]
pub struct Sessions<T> {
    limits: Limits,
    open: HashMap<String, Session<T>>,
    /// Sessions that are open, and those that are about to be.
    places: Pool,
    ended: Ends,
    calls: Pool,
    scans: Pool,
    bytes: Pool,
    stopping: bool,
}

impl<T: Clone> Sessions<T> {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: HashMap::new(),
            places: Pool::new(limits.sessions_max),
            ended: Ends::up_to(limits.ends_max),
            calls: Pool::new(limits.calls_max),
            scans: Pool::new(limits.scans_max),
            bytes: Pool::new(limits.bytes_max),
            stopping: false,
        }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Open sessions, those that commit among them.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// What they have written, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.taken()
    }

    /// Whether there is no session, and none about to be opened.
    pub fn is_empty(&self) -> bool {
        self.places.taken() == 0
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Makes room for a session of this client, which [`Self::begun`] or [`Self::not_begun`] has to follow.
    ///
    /// # Errors
    /// [`Refusal::Stopping`], [`Refusal::Sessions`].
    pub fn begin(&mut self, client: IpAddr) -> Result<(), Refusal> {
        if self.stopping {
            return Err(Refusal::Stopping);
        }
        self.places.take(client, 1).map_err(Refusal::Sessions)
    }

    /// The session is open.
    pub fn begun(&mut self, now: Duration, client: IpAddr, token: String, txn: T) {
        let session = Session::new(now, client, txn, Role::default());
        self.open.insert(token, session);
    }

    /// The session could not be opened.
    pub fn not_begun(&mut self, client: IpAddr) {
        self.places.give_back(client, 1);
    }

    /// Begins a call, which [`Self::call_done`] has to follow. What carries it out, and whose it is.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn call(&mut self, now: Duration, token: &str) -> Result<(T, IpAddr), Refusal> {
        let client = self.check_calls(now, token)?;
        self.calls.check(client, 1).map_err(Refusal::Calls)?;
        let session = self.usable(now, token)?;
        session.calls += 1;
        session.used = now;
        let txn = session.txn.clone();
        self.calls.add(client, 1);
        self.touch_manager(now, token);
        Ok((txn, client))
    }

    /// Whether one more call of the session may be under way, as far as its own are concerned; whose it is.
    fn check_calls(&mut self, now: Duration, token: &str) -> Result<IpAddr, Refusal> {
        let most = self.limits.session_calls_max;
        let session = self.usable(now, token)?;
        if session.calls >= most {
            return Err(Refusal::SessionCalls(most));
        }
        Ok(session.client)
    }

    /// A call of this client has ended, also one of a session that has ended meanwhile.
    pub fn call_done(&mut self, now: Duration, token: &str, client: IpAddr) {
        self.calls.give_back(client, 1);
        if let Some(session) = self.open.get_mut(token) {
            session.calls = session.calls.saturating_sub(1);
            session.used = now;
        }
    }

    /// Begins a scan, which [`Self::scan_done`] has to follow. What carries it out, and whose it is.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn scan(&mut self, now: Duration, token: &str) -> Result<(T, IpAddr), Refusal> {
        let client = self.check_calls(now, token)?;
        self.scans.check(client, 1).map_err(Refusal::Scans)?;
        let session = self.usable(now, token)?;
        session.calls += 1;
        session.scans += 1;
        session.used = now;
        let txn = session.txn.clone();
        self.scans.add(client, 1);
        self.touch_manager(now, token);
        Ok((txn, client))
    }

    /// The reader of a scan has taken something.
    pub fn scan_goes_on(&mut self, now: Duration, token: &str) {
        if let Ok(session) = self.usable(now, token) {
            session.used = now;
            self.touch_manager(now, token);
        }
    }

    /// A scan of this client has ended, also one of a session that has ended meanwhile.
    pub fn scan_done(&mut self, now: Duration, token: &str, client: IpAddr) {
        self.scans.give_back(client, 1);
        let session = self.open.get(token);
        let is_over = session.is_some_and(|session| self.over(session, now).is_some());
        if let Some(session) = self.open.get_mut(token) {
            session.calls = session.calls.saturating_sub(1);
            session.scans = session.scans.saturating_sub(1);
            // One whose time is over was said to have ended: nothing brings it back.
            if !is_over {
                session.used = now;
            }
        }
    }

    /// Whether the session may write so many bytes more. [`Self::written`] says then what it has written.
    ///
    /// # Errors
    /// [`Refusal::SessionBytes`], [`Refusal::Bytes`], or that the session has ended.
    pub fn check_room(&self, token: &str, bytes: usize) -> Result<(), Refusal> {
        let session = self.open.get(token).ok_or_else(|| self.gone(token))?;
        if session.bytes.saturating_add(bytes) > self.limits.session_bytes_max {
            return Err(Refusal::SessionBytes(self.limits.session_bytes_max));
        }
        let fits = self.bytes.check(session.client, bytes);
        fits.map_err(Refusal::Bytes)
    }

    /// The session has written so many bytes in all.
    pub fn written(&mut self, token: &str, bytes: usize) {
        if let Some(session) = self.open.get_mut(token) {
            let bytes = bytes + session.role.given_bytes();
            self.bytes.give_back(session.client, session.bytes);
            self.bytes.add(session.client, bytes);
            session.bytes = bytes;
        }
    }

    /// Begins the commit of a session. A session that is committed says so again.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn commit(&mut self, now: Duration, token: &str) -> Result<CommitStep<T>, Refusal> {
        match self.usable(now, token) {
            Ok(session) => {
                session.role.check_commit()?;
                session.committing = !mutants::on(SessionMutant::CommitTwice);
                Ok(CommitStep::Begin(session.txn.clone()))
            }
            Err(Refusal::Ended(SessionEnd::Committed(commit_ts))) => {
                Ok(CommitStep::Done(commit_ts))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// What a commit was to write was refused: the session is as it was before.
    pub fn commit_not_begun(&mut self, now: Duration, token: &str) {
        if let Some(session) = self.open.get_mut(token) {
            session.committing = false;
            session.used = now;
        }
    }

    /// Rolls a session back: what is returned is to be rolled back. `None`: nothing of it is visible as it is.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn rollback(&mut self, now: Duration, token: &str) -> Result<Option<T>, Refusal> {
        match self.usable(now, token).map(|session| session.txn.clone()) {
            Ok(txn) => {
                self.finish(now, token, SessionEnd::RolledBack);
                Ok(Some(txn))
            }
            Err(Refusal::Ended(
                SessionEnd::RolledBack
                | SessionEnd::Aborted
                | SessionEnd::Expired(_)
                | SessionEnd::Stopped
                | SessionEnd::ParticipantLost
                | SessionEnd::ManagerGone,
            )) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// A session has ended so: what it held is free. What a caller may still have to roll back; `None`: it had ended
    /// before, and what is known of that stays.
    pub fn finish(&mut self, now: Duration, token: &str, end: SessionEnd) -> Option<T> {
        let (token, session) = self.open.remove_entry(token)?;
        self.places.give_back(session.client, 1);
        if !mutants::on(SessionMutant::BytesKept) {
            self.bytes.give_back(session.client, session.bytes);
        }
        let end = session.role.ended_by(end);
        if end != SessionEnd::Finished || mutants::on(SessionMutant::FinishedIsLost) {
            self.participant_lost(&session.role);
        }
        self.ended.add(now, session.client, token, end);
        Some(session.txn)
    }

    /// The cluster has ended the transaction of a session: what is left is to be rolled back. A commit that is under way
    /// finds that out by itself.
    pub fn abort(&mut self, now: Duration, token: &str, end: SessionEnd) -> Option<T> {
        if self.open.get(token)?.committing {
            return None;
        }
        self.finish(now, token, end)
    }

    /// What became of the transaction of a session whose outcome was not known.
    pub fn found_out(&mut self, token: &str, end: SessionEnd) {
        if let Some(known @ SessionEnd::Unknown { .. }) = self.ended.get_mut(token) {
            *known = end;
        }
    }

    /// What is known of how a session ends.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn outcome(&self, token: &str) -> Result<KnownEnd, Refusal> {
        if self.open.contains_key(token) {
            return Ok(KnownEnd::Open);
        }
        match self.gone(token) {
            Refusal::Ended(end) => Ok(KnownEnd::Ended(end)),
            refusal => Err(refusal),
        }
    }

    /// The refusal of this token's calls; `None`: it has an open session.
    pub fn why_gone(&self, token: &str) -> Option<Refusal> {
        (!self.open.contains_key(token)).then(|| self.gone(token))
    }

    /// Ends the sessions whose time is over, and those of transactions that have lost a participant or their manager: they are to
    /// be rolled back.
    pub fn expire(&mut self, now: Duration) -> Vec<(T, SessionEnd)> {
        if let Some(before) = now.checked_sub(self.limits.remember_for) {
            self.ended.forget_before(before);
        }
        let over: Vec<(String, SessionEnd)> = self
            .open
            .iter()
            .filter_map(|(token, session)| Some((token.clone(), self.over(session, now)?)))
            .collect();
        over.into_iter()
            .filter_map(|(token, end)| Some((self.finish(now, &token, end.clone())?, end)))
            .collect()
    }

    /// From now on no session begins.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Ends all sessions but those that commit: they are to be rolled back.
    pub fn end_all(&mut self, now: Duration) -> Vec<T> {
        let idle = self
            .open
            .iter()
            .filter(|(_, session)| !session.committing)
            .map(|(token, _)| token.clone())
            .collect::<Vec<_>>();
        idle.into_iter()
            .filter_map(|token| self.finish(now, &token, SessionEnd::Stopped))
            .collect()
    }

    /// The session, for a call on it. One whose time is over can't be used, though nobody has ended it yet.
    fn usable(&mut self, now: Duration, token: &str) -> Result<&mut Session<T>, Refusal> {
        let Some(session) = self.open.get(token) else {
            return Err(self.gone(token));
        };
        let is_sealed = session.role.is_sealed() && !mutants::on(SessionMutant::SealedWrites);
        if session.committing || is_sealed {
            return Err(Refusal::Committing);
        }
        if let Some(end) = self.over(session, now) {
            return Err(Refusal::Ended(end));
        }
        self.open.get_mut(token).ok_or(Refusal::Unknown)
    }

    fn gone(&self, token: &str) -> Refusal {
        match self.ended.get(token) {
            Some(end) => Refusal::Ended(end.clone()),
            None => Refusal::Unknown,
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
